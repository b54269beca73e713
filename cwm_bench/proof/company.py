"""Company for an engine: requests of others, whose batches change the shapes in which sums are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from uuid import uuid4

import httpx2

from cwm.background import cancel_and_wait
from cwm_bench.proof.parts import Company

_STREAMS = 8
_STREAM_TOKENS = 200
_PREFILL_TOKENS = 900
_VOCABULARY = range(300, 1800)


@asynccontextmanager
async def company(kind: Company, vllm_url: str, model: str, random: Random) -> AsyncIterator[None]:
    """The company for as long as the block lasts, after its first requests were answered."""
    count, prompt, answer = {
        Company.ALONE: (0, 0, 0),
        Company.STREAMS: (_STREAMS, 40, _STREAM_TOKENS),
        Company.PREFILLS: (2, _PREFILL_TOKENS, 1),
    }[kind]
    started = [asyncio.Event() for _ in range(count)]

    async with httpx2.AsyncClient(timeout=600, trust_env=False) as http:

        async def talk(begun: asyncio.Event) -> None:
            while True:
                body = {
                    "model": model,
                    "prompt": random.choices(_VOCABULARY, k=prompt),
                    "max_tokens": answer,
                    "ignore_eos": True,
                    "stream": True,
                    "cache_salt": f"company-{uuid4().hex[:8]}",
                    # Nothing of it is loaded or stored.
                    "kv_transfer_params": {"cwm.load_tokens": 0, "lmcache.max_offload_tokens": 0},
                }
                async with http.stream("POST", f"{vllm_url}/v1/completions", json=body) as response:
                    async for _ in response.aiter_lines():
                        begun.set()

        tasks = [asyncio.create_task(talk(event)) for event in started]
        try:
            for event in started:
                await event.wait()
            yield
        finally:
            await cancel_and_wait(*tasks)
