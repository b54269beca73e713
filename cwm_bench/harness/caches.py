"""Empty an engine's memory, so that it loads from the lower tiers."""

from __future__ import annotations

import asyncio
from typing import Protocol

import httpx2

from cwm.adapters.lmcache.client import LmcacheTier

_STORE_SECONDS = 60.0
_RESET_SECONDS = 60.0
_POLL_SECONDS = 0.02


class Memory(Protocol):
    """The URLs of an engine with vLLM's development endpoints."""

    @property
    def vllm_url(self) -> str: ...

    @property
    def lmcache_url(self) -> str: ...


async def empty_memory(http: httpx2.AsyncClient, engine: Memory) -> None:
    """Empty vLLM's own cache and LMCache's L1."""
    await empty_vllm(http, engine)
    await empty_l1(http, engine)


async def empty_vllm(http: httpx2.AsyncClient, engine: Memory) -> None:
    """Repeat until vLLM agrees: it refuses while a request holds blocks."""
    async with asyncio.timeout(_RESET_SECONDS):
        while True:
            response = await http.post(f"{engine.vllm_url}/reset_prefix_cache")
            if response.json().get("success"):
                return
            await asyncio.sleep(_POLL_SECONDS)


async def empty_l1(http: httpx2.AsyncClient, engine: Memory) -> None:
    (await http.post(f"{engine.lmcache_url}/cache/clear", json={})).raise_for_status()


async def stored(kv_tier: LmcacheTier) -> None:
    """Return when LMCache has written the last turn's chunks below L1."""
    async with asyncio.timeout(_STORE_SECONDS):
        while await kv_tier.storing():  # noqa: ASYNC110 - polled over HTTP
            await asyncio.sleep(_POLL_SECONDS)
