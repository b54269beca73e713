"""LMCache's own counts of what it loaded, asked the moment a load has ended."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import httpx2
import pytest

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.domain.engine import Tier
from cwm.ports.kv_tier import PrefixKey
from cwm.settings import Engine
from tests.live.conftest import LiveEngine

pytestmark = pytest.mark.live

CHUNKS = 20
ROUNDS = 30


async def test_what_a_prefetch_loaded_is_counted_when_it_has_ended(live_engine: LiveEngine) -> None:
    cache = LmcacheTier(
        Engine(
            vllm_url=live_engine.vllm_url,
            lmcache_url=live_engine.lmcache_url,
            coordinator_url=live_engine.coordinator_url,
        )
    )
    salt = uuid4().hex
    async with (
        asyncio.timeout(300),
        httpx2.AsyncClient(base_url=live_engine.vllm_url, trust_env=False) as vllm,
    ):
        for turn in range(ROUNDS):
            ids = [*([300 + turn] * (CHUNKS * live_engine.chunk_size)), 299]
            prefix = PrefixKey(live_engine.model_root, 1, tuple(ids), salt)
            answer = await vllm.post(
                "/v1/completions",
                json={
                    "model": live_engine.model_name,
                    "prompt": ids,
                    "max_tokens": 1,
                    "cache_salt": salt,
                },
            )
            answer.raise_for_status()
            while not (await cache.prefetch(prefix)).complete or await cache.storing():  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.01)
            await cache.drop_l1(prefix)
            before = await cache.loads(salt)
            found = (await cache.prefetch(prefix)).found
            assert found == CHUNKS
            loaded = await cache.loads(salt)
            assert loaded.at_once
            assert loaded.since(before).chunks == CHUNKS
            # Of any salt: others may have loaded too.
            assert {tier for tier, loads in loaded.since(before).by_tier.items() if loads} == {Tier.REDIS}
    await cache.aclose()
