"""LMCache says of each prefetch which tier its chunks came from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.domain.engine import Tier
from cwm.ports.kv_tier import Prefetched, PrefixKey
from cwm.settings import Engine
from tests.live.engine import LiveEngine

pytestmark = pytest.mark.live

CHUNKS = 20
ROUNDS = 10


@pytest.fixture
async def cache(live_engine: LiveEngine) -> AsyncIterator[LmcacheTier]:
    settings = Engine(
        vllm_url=live_engine.vllm_url,
        lmcache_url=live_engine.lmcache_url,
        coordinator_url=live_engine.coordinator_url,
    )
    tier = LmcacheTier(settings)
    yield tier
    await tier.aclose()


async def stored(engine: LiveEngine, cache: LmcacheTier, token: int) -> PrefixKey:
    """A prefix of one token again and again, computed and written below L1 under a salt of its own."""
    ids, salt = [*([token] * (CHUNKS * engine.chunk_size)), 299], uuid4().hex
    prefix = PrefixKey(engine.model_root, 1, tuple(ids), salt)
    body = {"model": engine.model_name, "prompt": ids, "max_tokens": 1, "cache_salt": salt}
    async with asyncio.timeout(120), httpx2.AsyncClient(timeout=60, trust_env=False) as vllm:
        (await vllm.post(f"{engine.vllm_url}/v1/completions", json=body)).raise_for_status()
        while not (await cache.prefetch(prefix)).complete or await cache.storing():  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)
    return prefix


async def test_chunks_that_l1_does_not_have_are_told_with_their_tier(
    live_engine: LiveEngine, cache: LmcacheTier
) -> None:
    prefix = await stored(live_engine, cache, 300)
    for _ in range(ROUNDS):
        await cache.drop_l1(prefix)
        assert await cache.prefetch(prefix) == Prefetched(CHUNKS, CHUNKS, {Tier.REDIS: CHUNKS})


async def test_chunks_that_l1_has_are_of_no_tier_below_it(
    live_engine: LiveEngine, cache: LmcacheTier
) -> None:
    prefix = await stored(live_engine, cache, 301)
    await cache.drop_l1(prefix)
    beginning = PrefixKey(prefix.root, 1, prefix.token_ids[: 5 * live_engine.chunk_size], prefix.cache_salt)
    assert await cache.prefetch(beginning) == Prefetched(5, 5, {Tier.REDIS: 5})
    assert await cache.prefetch(prefix) == Prefetched(CHUNKS, CHUNKS, {Tier.REDIS: CHUNKS - 5})
    assert await cache.prefetch(prefix) == Prefetched(CHUNKS, CHUNKS, {})


async def test_what_others_load_at_the_same_time_is_theirs(
    live_engine: LiveEngine, cache: LmcacheTier
) -> None:
    prefixes = [await stored(live_engine, cache, 302 + number) for number in range(3)]
    for _ in range(ROUNDS):
        for prefix in prefixes[1:]:
            await cache.drop_l1(prefix)
        told = await asyncio.gather(*map(cache.prefetch, prefixes))
        assert [each.loaded for each in told] == [{}, {Tier.REDIS: CHUNKS}, {Tier.REDIS: CHUNKS}]
