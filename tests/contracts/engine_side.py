"""An engine and the cache beside it, in memory or real, and what a test may have happen to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from redis.asyncio import Redis

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.engine import Tier
from cwm.ports.engine import Completion, Engine, Generation
from cwm.ports.kv_tier import KvTier, KvTierFacts, Placement, PrefixKey
from cwm.settings import Engine as EngineSettings
from cwm_bench.harness.damage import Copies, Forger, InRedis, OnDisk, copies, flipped
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import Copy, FakeKvTier
from tests.live.engine import LiveEngine
from tests.live.talk import words


class Faults(Protocol):
    """What may happen to an engine and its cache. Nobody is told of it."""

    async def forget_gpu(self) -> None:
        """The engine's own cache is empty."""

    async def lose(self, key: PrefixKey, keep: int = 0) -> None:
        """Every copy behind the first few chunks is gone."""

    async def lose_in_redis(self, key: PrefixKey) -> None:
        """Redis has none of the prefix, as if it had been full when it was stored."""

    async def spoil(self, key: PrefixKey, at: int) -> None:
        """One chunk's value in Redis is damaged, and L1 has none of the prefix."""

    async def forge(self, key: PrefixKey, at: int, source: int) -> None:
        """One chunk's value in Redis is another's under its name, and L1 has none of the prefix."""


@dataclass(frozen=True, slots=True)
class EngineSide:
    engine: Engine
    kv_tier: KvTier
    faults: Faults
    model: str
    root: str
    facts: KvTierFacts
    salt: str = field(default_factory=lambda: f"test-{uuid4().hex[:12]}")

    @property
    def chunk(self) -> int:
        return self.facts.chunk_size

    def ids(self, chunks: int, over: int = 1) -> tuple[int, ...]:
        """A context that nobody has asked for yet, of so many chunks and ``over`` tokens."""
        return tuple(words(chunks * self.chunk + over))

    def key(self, ids: tuple[int, ...], root: str | None = None) -> PrefixKey:
        return PrefixKey(root or self.root, 1, ids, self.salt)

    def request(
        self,
        ids: tuple[int, ...],
        max_tokens: int = 1,
        *,
        load_tokens: int | None = None,
        store_tokens: int | None = None,
        tell_loaded: bool = True,
        logprobs: int | None = None,
    ) -> Generation:
        sampling = {"temperature": 0, "ignore_eos": True} | ({"logprobs": logprobs} if logprobs else {})
        return Generation(
            self.model, ids, self.salt, max_tokens, sampling, load_tokens, store_tokens, tell_loaded
        )

    async def ask(self, ids: tuple[int, ...], max_tokens: int = 1, **limits: int) -> Completion:
        return await self.engine.complete(self.request(ids, max_tokens, **limits))  # type: ignore[arg-type]

    async def settled(self, key: PrefixKey, chunks: int) -> None:
        """So many chunks have arrived, and nothing is on its way below L1 any more."""
        async with asyncio.timeout(30):
            while (await self.kv_tier.prefetch(key)).found < chunks:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.005)
            while await self.kv_tier.storing():  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.005)

    async def stored(self, ids: tuple[int, ...], **limits: int) -> PrefixKey:
        """The full chunks of a prompt, computed and below L1."""
        await self.ask(ids, **limits)
        await self.settled(self.key(ids), len(ids) // self.chunk)
        return self.key(ids)

    async def placed(self, key: PrefixKey, ready: Callable[[list[Placement]], bool]) -> list[Placement]:
        """What the directory says once it is ``ready``, which it is a moment late."""
        async with asyncio.timeout(10):
            while not ready(placements := await self.kv_tier.lookup(key)):  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.01)
        return placements


@dataclass(frozen=True, slots=True)
class _InMemory:
    engine: FakeEngine
    tier: FakeKvTier

    async def forget_gpu(self) -> None:
        self.engine.restart()

    async def lose(self, key: PrefixKey, keep: int = 0) -> None:
        self.tier.lose(key, keep=keep)

    async def lose_in_redis(self, key: PrefixKey) -> None:
        self.tier.lose(key, [Tier.REDIS])

    async def spoil(self, key: PrefixKey, at: int) -> None:
        await self.tier.drop_l1(key)
        self.tier.damage(key, at, Copy.BROKEN, [Tier.REDIS])

    async def forge(self, key: PrefixKey, at: int, source: int) -> None:
        await self.tier.drop_l1(key)
        self.tier.damage(key, at, Copy.FORGED, [Tier.REDIS])


@dataclass(frozen=True, slots=True)
class _Real:
    live: LiveEngine
    tier: LmcacheTier
    redis: Redis

    async def forget_gpu(self) -> None:
        await self.live.forget_gpu_cache()

    async def lose(self, key: PrefixKey, keep: int = 0) -> None:
        await self.tier.drop_l1(key)
        hashes = chunk_hashes(key.token_ids, self.live.chunk_size)[keep:]
        for stored in (InRedis(self.redis), OnDisk(self.live.storage_path / "kv")):
            await stored.remove((await copies(stored, hashes)).names)

    async def lose_in_redis(self, key: PrefixKey) -> None:
        await InRedis(self.redis).remove((await self._in_redis(key)).names)

    async def spoil(self, key: PrefixKey, at: int) -> None:
        stored = await self._in_redis(key)
        await self._write(key, stored.names[at], flipped(stored.values[at]))

    async def forge(self, key: PrefixKey, at: int, source: int) -> None:
        stored = await self._in_redis(key)
        forger = Forger(self.live.storage_path / "kv.keys")
        forged = forger.forged(stored.values[source], stored.names[source], stored.names[at])
        await self._write(key, stored.names[at], forged)

    async def _in_redis(self, key: PrefixKey) -> Copies:
        return await copies(InRedis(self.redis), chunk_hashes(key.token_ids, self.live.chunk_size))

    async def _write(self, key: PrefixKey, name: str, value: bytes) -> None:
        await InRedis(self.redis).write(name, value)
        await self.tier.drop_l1(key)


@asynccontextmanager
async def in_memory() -> AsyncIterator[EngineSide]:
    tier = FakeKvTier()
    engine = FakeEngine(tier)
    yield await _opened(engine, tier, _InMemory(engine, tier))


@asynccontextmanager
async def real(live: LiveEngine) -> AsyncIterator[EngineSide]:
    settings = EngineSettings(
        vllm_url=live.vllm_url, lmcache_url=live.lmcache_url, coordinator_url=live.coordinator_url
    )
    engine, tier = VllmEngine(settings), LmcacheTier(settings)
    try:
        async with Redis.from_url(live.redis_url) as redis:
            yield await _opened(engine, tier, _Real(live, tier, redis))
    finally:
        await engine.aclose()
        await tier.aclose()


async def _opened(engine: Engine, tier: KvTier, faults: Faults) -> EngineSide:
    """Something has been stored, as by the directory's probe: only then LMCache knows the model."""
    (served,) = await engine.models()
    facts = await tier.facts()
    assert facts is not None
    side = EngineSide(engine, tier, faults, served.id, served.root, facts)
    await side.ask(side.ids(1))
    return side
