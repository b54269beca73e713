"""What vLLM's own cache rests on, and what is dropped from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

import httpx2
import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.engine import Completion, Generation
from cwm.settings import Engine
from tests.live.engine import LiveEngine
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Asker:
    engine: LiveEngine
    vllm: VllmEngine
    salt: str

    async def ask(
        self,
        ids: list[int],
        *,
        load_tokens: int | None = 0,
        drop_after: int | None = None,
        max_tokens: int = 1,
    ) -> Completion:
        generation = Generation(
            self.engine.model_name,
            tuple(ids),
            self.salt,
            max_tokens=max_tokens,
            sampling={"temperature": 0, "ignore_eos": True},
            load_tokens=load_tokens,
            drop_after=drop_after,
            tell_loaded=True,
        )
        return await self.vllm.complete(generation)

    def chunks(self, count: int) -> list[int]:
        return words(count * self.engine.chunk_size)


@pytest.fixture
async def asker(live_engine: LiveEngine) -> AsyncIterator[Asker]:
    async with aclosing(VllmEngine(Engine(vllm_url=live_engine.vllm_url))) as vllm:
        yield Asker(live_engine, vllm, uuid4().hex)


async def test_what_was_computed_since_the_start_rests_on_nothing(asker: Asker) -> None:
    ids = [*asker.chunks(4), 300]
    cold, warm = await asker.ask(ids), await asker.ask(ids)
    assert (cold.resting_tokens, warm.resting_tokens) == (0, 0)
    assert warm.cached_tokens == len(ids) - 1


async def test_loaded_blocks_are_known_by_whoever_finds_them(asker: Asker) -> None:
    chunk = asker.engine.chunk_size
    begin, more = asker.chunks(4), asker.chunks(3)
    await asker.ask([*begin, 300])
    await asker.engine.forget_gpu_cache()
    loaded = await asker.ask([*begin, *more, 300], load_tokens=None)
    assert (loaded.loaded_tokens, loaded.resting_tokens) == (4 * chunk, 4 * chunk)
    found = await asker.ask([*begin[: 2 * chunk], *asker.chunks(1), 300])
    assert (found.loaded_tokens, found.resting_tokens) == (0, 2 * chunk)
    # What was computed on top of the load rests on that, and on nothing behind it.
    above = await asker.ask([*begin, *more, *asker.chunks(1), 300])
    assert (above.cached_tokens, above.resting_tokens) == (7 * chunk, 4 * chunk)
    await asker.engine.forget_gpu_cache()
    anew = await asker.ask([*begin, *more, 300])
    assert (anew.cached_tokens, anew.resting_tokens) == (0, 0)


async def test_what_rests_on_a_load_does_so_after_the_load_was_dropped(asker: Asker) -> None:
    chunk = asker.engine.chunk_size
    begin = asker.chunks(2)
    await asker.ask([*begin, 300])
    await asker.engine.forget_gpu_cache()
    answer = await asker.ask([*begin, 300], load_tokens=None, max_tokens=2 * chunk)
    whole = [*begin, 300, *answer.token_ids]
    assert (await asker.ask([*whole, 301])).resting_tokens == 2 * chunk


async def test_a_drop_takes_what_was_computed_on_top_and_nothing_else(asker: Asker) -> None:
    chunk = asker.engine.chunk_size
    shared, own, others = asker.chunks(4), asker.chunks(4), asker.chunks(4)
    first, second = [*shared, *own, 300], [*shared, *others, 300]
    third = [*shared, *own[: 2 * chunk], *asker.chunks(3), 300]
    unrelated = [*asker.chunks(5), 300]
    for ids in (first, second, third, unrelated):
        await asker.ask(ids)
    dropped = await asker.ask(first, drop_after=5 * chunk)
    # Chunks 6 to 8 of the first, and the three that the third has on top of chunk 6.
    assert dropped.dropped_blocks == 6
    assert dropped.cached_tokens == 5 * chunk
    assert (await asker.ask(second)).cached_tokens == 8 * chunk
    assert (await asker.ask(unrelated)).cached_tokens == 5 * chunk
    # The first has computed chunk 6 anew, and so much is found again.
    assert (await asker.ask(third)).cached_tokens == 6 * chunk
    assert (await asker.ask(first, drop_after=0)).cached_tokens == 0
    assert (await asker.ask(second, drop_after=10**9)).dropped_blocks == 0


async def test_a_request_that_runs_goes_on_and_leaves_nothing_of_what_was_dropped(asker: Asker) -> None:
    chunk = asker.engine.chunk_size
    ids = [*asker.chunks(3), 300]
    generation = Generation(
        asker.engine.model_name,
        tuple(ids),
        asker.salt,
        max_tokens=4 * chunk,
        sampling={"temperature": 0, "ignore_eos": True},
        load_tokens=0,
    )
    tokens: list[int] = []
    async with aclosing(asker.vllm.stream(generation)) as stream:
        async for piece in stream:
            tokens += piece.token_ids
            if len(tokens) == chunk:
                dropped = await asker.ask(ids, drop_after=chunk)
                assert (dropped.dropped_blocks or 0) >= 2
                assert dropped.cached_tokens == chunk
    assert len(tokens) == 4 * chunk
    assert (await asker.ask([*ids, *tokens, 301])).cached_tokens == 3 * chunk


async def test_of_several_prompts_the_cached_tokens_of_the_last_are_told(asker: Asker) -> None:
    """By which a look knows that the engine had evicted nothing of the longest."""
    chunk = asker.engine.chunk_size
    known, new = asker.chunks(3), asker.chunks(2)
    await asker.ask([*known, 300])
    for prompts, cached in (
        ([[*known[:chunk], 301], [*known, 300]], 3 * chunk),
        ([[*known, 300], [*new, 300]], 0),
    ):
        body = {
            "model": asker.engine.model_name,
            "prompt": prompts,
            "max_tokens": 1,
            "cache_salt": asker.salt,
            "kv_transfer_params": {"cwm.load_tokens": 0, "lmcache.max_offload_tokens": 0},
        }
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
            answer = await http.post(f"{asker.engine.vllm_url}/v1/completions", json=body)
        usage = answer.raise_for_status().json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
