"""Sampling with a seed on an engine whose prompts take several steps, as those of a CPU engine do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import uuid4

import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.engine import Generation
from cwm.settings import Engine
from tests.live.engine import LiveEngine
from tests.live.talk import words

pytestmark = pytest.mark.live

# Over three steps of a CPU engine, which computes 512 tokens in one.
_PROMPT_TOKENS, _ANSWER_TOKENS = 1500, 12


@pytest.fixture
async def vllm(live_engine: LiveEngine) -> AsyncIterator[VllmEngine]:
    async with aclosing(VllmEngine(Engine(vllm_url=live_engine.vllm_url))) as engine:
        yield engine


async def test_one_seed_gives_one_answer_however_the_prompt_is_computed(
    live_engine: LiveEngine, vllm: VllmEngine
) -> None:
    def request(prompt: tuple[int, ...], salt: str, seed: int) -> Generation:
        sampling = {"temperature": 0.9, "seed": seed, "ignore_eos": True}
        return Generation(live_engine.model_name, prompt, salt, _ANSWER_TOKENS, sampling)

    prompts, salt = [tuple(words(_PROMPT_TOKENS)) for _ in range(3)], uuid4().hex
    restarts = live_engine.restarts("vllm")
    # At once, so that one batch has rows that sample for good and rows that do not yet.
    computed = await asyncio.gather(*(vllm.complete(request(prompt, salt, 7)) for prompt in prompts))
    cached = [await vllm.complete(request(prompt, salt, 7)) for prompt in prompts]
    assert [answer.token_ids for answer in computed] == [answer.token_ids for answer in cached]
    assert all(answer.cached_tokens for answer in cached)
    other = await vllm.complete(request(prompts[0], salt, 8))
    assert other.token_ids != computed[0].token_ids
    assert live_engine.restarts("vllm") == restarts
