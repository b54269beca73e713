"""Loads that LMCache breaks off, because it stands still in the middle of them, as it does on a machine that is busy."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from uuid import uuid4

import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.engine import Completion, Generation
from cwm.settings import Engine
from tests.live.conftest import LiveEngine
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

_TOKENS = 3000
_PATIENCE_SECONDS = 60
# The scheduler and the worker, each by itself.
_WHO_GIVE_UP = 2
_GIVEN_UP = "entering degraded mode"
_BROKEN_OFF = "Recovered from KV load failure"
# A load of 3,000 tokens from memory takes some tens of milliseconds: some of these moments are in the middle of one.
_MOMENTS_MS = (*range(20, 80, 6), *range(80, 240, 20), *range(5, 20, 5))


@pytest.fixture
async def vllm(live_engine: LiveEngine) -> AsyncIterator[VllmEngine]:
    async with aclosing(VllmEngine(Engine(vllm_url=live_engine.vllm_url))) as engine:
        yield engine


@contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Loads:
    """A context that LMCache has, asked for again and again by an engine that has forgotten it."""

    def __init__(self, engine: LiveEngine, vllm: VllmEngine) -> None:
        self._engine = engine
        self._vllm = vllm
        self._salt = uuid4().hex
        self._ids = tuple(words(_TOKENS))
        self.at_all = _TOKENS // engine.chunk_size * engine.chunk_size

    async def ask(self) -> Completion:
        return await self._vllm.complete(self._generation(self._ids, tell_loaded=True))

    async def until_loaded(self) -> Completion:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                await self._engine.forget_gpu_cache()
                if (answer := await self.ask()).loaded_tokens:
                    return answer

    async def ask_while_it_stops(self, after_ms: int, *, kept: int) -> Completion:
        """``kept``: as many tokens as the engine has of it when it is asked."""
        await self._engine.forget_gpu_cache()
        if kept:
            # One token more: the engine keeps no block that its last token is in.
            await self._vllm.complete(self._generation(self._ids[: kept + 1], load_tokens=0))
        given_up = self._engine.logged("vllm", _GIVEN_UP)
        asked = asyncio.create_task(self.ask())
        await asyncio.wait({asked}, timeout=after_ms / 1000)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            with standing_still(self._engine.pids("lmcache")):
                # No longer: a vLLM that wants to store something waits for ten seconds, and dies.
                while not asked.done() and self._engine.logged("vllm", _GIVEN_UP) < given_up + _WHO_GIVE_UP:
                    await asyncio.wait({asked}, timeout=0.05)
            return await asked

    def _generation(
        self, ids: tuple[int, ...], *, load_tokens: int | None = None, tell_loaded: bool = False
    ) -> Generation:
        return Generation(
            self._engine.model_name,
            ids,
            self._salt,
            max_tokens=8,
            sampling={"temperature": 0, "ignore_eos": True},
            load_tokens=load_tokens,
            tell_loaded=tell_loaded,
        )


@pytest.mark.parametrize("kept_chunks", [0, 4])
async def test_a_load_that_breaks_off_is_computed_and_told_as_computed(
    live_engine: LiveEngine, vllm: VllmEngine, kept_chunks: int
) -> None:
    loads = Loads(live_engine, vllm)
    kept = kept_chunks * live_engine.chunk_size
    right = (await loads.ask()).token_ids
    assert (await loads.until_loaded()).cached_tokens == loads.at_all
    before = live_engine.logged("vllm", _BROKEN_OFF)
    for moment in _MOMENTS_MS:
        answer = await loads.ask_while_it_stops(moment, kept=kept)
        assert answer.token_ids == right
        assert answer.loaded_tokens in {0, loads.at_all - kept}
        assert answer.cached_tokens == kept + (answer.loaded_tokens or 0)
        assert (await loads.until_loaded()).token_ids == right
        if live_engine.logged("vllm", _BROKEN_OFF) > before:
            break
    else:
        pytest.fail("no load was under way when LMCache stopped")
