"""The fake vLLM of the tests over HTTP against the keys of a real one, and a chat's ids by both of its ways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.settings import Engine
from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm, fake_vllm
from tests.live.engine import LiveEngine

pytestmark = pytest.mark.live


@pytest.fixture
async def engine(live_engine: LiveEngine) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(Engine(vllm_url=live_engine.vllm_url))
    yield engine
    await engine.aclose()


@pytest.fixture
async def fake() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as running:
        yield running


def salt() -> str:
    return f"test-{uuid4().hex[:12]}"


async def test_a_chat_is_rendered_by_the_models_own_template(
    engine: VllmEngine, live_engine: LiveEngine
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    rendered = await engine.render(live_engine.model_name, messages)
    without = await engine.render(live_engine.model_name, messages, add_generation_prompt=False)
    assert rendered[: len(without)] == without
    async with httpx2.AsyncClient(base_url=live_engine.vllm_url, trust_env=False) as client:
        body = {
            "model": live_engine.model_name,
            "messages": messages,
            "max_tokens": 1,
            "return_token_ids": True,
        }
        answer = await client.post("/v1/chat/completions", json={**body, "cache_salt": salt()})
    assert tuple(answer.json()["prompt_token_ids"]) == rendered


def keys(value: Any) -> Any:
    """The shape of an answer: names, and those inside lists and objects."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys(value[0])]
    return None


def _loose(shape: Any) -> Any:
    """Timings are there or not by a flag of the engine's."""
    return {**shape, "metrics": None} if isinstance(shape, dict) and "metrics" in shape else shape


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_fake_answers_with_the_keys_of_the_real_one(
    fake: FakeVllm, live_engine: LiveEngine, path: str, told: bool, stream: bool
) -> None:
    ask: dict[str, Any] = {"max_tokens": 3, "return_token_ids": told, "stream": stream, "cache_salt": salt()}
    ask |= {"ignore_eos": True}
    ask |= (
        {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    )
    ask |= {"stream_options": {"include_usage": True}} if stream else {}

    async def shapes(url: str, model: str) -> list[Any]:
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(url + path, json={**ask, "model": model})
        if not stream:
            return [_loose(keys(answer.json()))]
        lines = [line[6:] for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        events = [json.loads(line) for line in lines[:-1]]
        return [keys(event.get("choices")) for event in (events[0], events[1])] + [
            events[0].keys() - {"metrics"},
        ]

    assert await shapes(fake.url, MODEL) == await shapes(live_engine.vllm_url, live_engine.model_name)
