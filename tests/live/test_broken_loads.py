"""Loads that LMCache breaks off, because it stands still in the middle of them, as it does on a machine that is busy."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from itertools import count
from uuid import uuid4

import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.engine import Completion, Generation
from cwm.settings import Engine
from tests.live.engine import LiveEngine
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

_TOKENS = 6000
_PATIENCE_SECONDS = 60
_HUNT_SECONDS = 300
# The scheduler and the worker, each by itself.
_WHO_GIVE_UP = 2
_GIVEN_UP = "entering degraded mode"
_BROKEN_OFF = "Recovered from KV load failure"


@pytest.fixture
async def vllm(live_engine: LiveEngine) -> AsyncIterator[VllmEngine]:
    async with aclosing(VllmEngine(Engine(vllm_url=live_engine.vllm_url))) as engine:
        yield engine


def fractions() -> Iterator[float]:
    """Of the time from 0 to 1, ever finer, none twice: how long a load takes, and where in a request, is the machine's."""
    for parts in (2**power for power in count(2)):
        yield from (part / parts for part in range(1, parts, 2))


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
        self._took_seconds = 0.0

    async def ask(self) -> Completion:
        return await self._vllm.complete(self._generation(self._ids, tell_loaded=True))

    async def until_loaded(self) -> Completion:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                await self._engine.forget_gpu_cache()
                begun = time.monotonic()
                if (answer := await self.ask()).loaded_tokens:
                    self._took_seconds = time.monotonic() - begun
                    return answer

    async def ask_while_it_stops(self, at: float, *, kept: int) -> Completion:
        """``at``: a fraction of what the last load took, with its request; ``kept``: as many tokens as the engine has of
        it when it is asked."""
        await self._engine.forget_gpu_cache()
        if kept:
            # One token more: the engine keeps no block that its last token is in.
            await self._vllm.complete(self._generation(self._ids[: kept + 1], load_tokens=0))
        given_up = self._engine.logged("vllm", _GIVEN_UP)
        asked = asyncio.create_task(self.ask())
        await asyncio.wait({asked}, timeout=at * self._took_seconds)
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
    async with asyncio.timeout(_HUNT_SECONDS):
        for moment in fractions():
            answer = await loads.ask_while_it_stops(moment, kept=kept)
            assert answer.token_ids == right
            assert answer.loaded_tokens in {0, loads.at_all - kept}
            assert answer.cached_tokens == kept + (answer.loaded_tokens or 0)
            assert (await loads.until_loaded()).token_ids == right
            if live_engine.logged("vllm", _BROKEN_OFF) > before:
                return
