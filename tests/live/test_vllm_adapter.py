"""The vLLM client against a real vLLM, and the fake of the other tests against its keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import InvalidParameterError
from cwm.ports.engine import Generation
from cwm.settings import Engine
from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm, fake_vllm
from tests.live.engine import LiveEngine

pytestmark = pytest.mark.live

PROMPT = "The quick brown fox jumps over the lazy dog. "


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


async def test_the_engine_tells_what_it_serves(engine: VllmEngine, live_engine: LiveEngine) -> None:
    (served,) = await engine.models()
    assert served.id == live_engine.model_name
    assert served.root.startswith("/")
    assert served.max_model_len > 0
    assert (await engine.version()).count(".") >= 2
    await engine.health()


async def test_ids_survive_the_way_there_and_back(engine: VllmEngine, live_engine: LiveEngine) -> None:
    model = live_engine.model_name
    ids = await engine.tokenize(model, PROMPT * 3, add_special_tokens=False)
    first = await engine.complete(Generation(model, ids, salt(), max_tokens=8, sampling={"temperature": 0}))
    assert first.prompt_tokens == len(ids)
    assert len(first.token_ids) <= 8
    assert first.fingerprint is not None
    deltas = [
        delta
        async for delta in engine.stream(
            Generation(model, ids, salt(), max_tokens=8, sampling={"temperature": 0})
        )
    ]
    assert sum((d.token_ids for d in deltas), ()) == first.token_ids
    assert "".join(d.text for d in deltas) == first.text
    assert deltas[-1].prompt_tokens == len(ids)


async def test_an_extension_of_a_prompt_is_reported_as_cached(
    engine: VllmEngine, live_engine: LiveEngine
) -> None:
    model, own = live_engine.model_name, salt()
    ids = await engine.tokenize(model, PROMPT * 20, add_special_tokens=False)
    first = await engine.complete(Generation(model, ids, own, max_tokens=1))
    again = await engine.complete(Generation(model, ids + first.token_ids, own, max_tokens=1))
    other = await engine.complete(Generation(model, ids + first.token_ids, salt(), max_tokens=1))
    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert again.cached_tokens >= len(ids) - live_engine.chunk_size


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


async def test_special_tokens_are_those_that_become_one_id(
    engine: VllmEngine, live_engine: LiveEngine
) -> None:
    special = await engine.special_tokens(live_engine.model_name)
    for text in special:
        assert len(await engine.tokenize(live_engine.model_name, text, add_special_tokens=False)) == 1
    assert "<|im_end|>" in special


async def test_vllm_tells_its_chat_template_and_the_type_of_its_kv(
    engine: VllmEngine, live_engine: LiveEngine
) -> None:
    assert "<|im_start|>" in (await engine.chat_template(live_engine.model_name) or "")
    assert await engine.kv_dtype() == "auto"


async def test_counters_grow_with_what_was_computed(engine: VllmEngine, live_engine: LiveEngine) -> None:
    before = await engine.counters()
    ids = await engine.tokenize(live_engine.model_name, PROMPT * 5, add_special_tokens=False)
    await engine.complete(Generation(live_engine.model_name, ids, salt(), max_tokens=1))
    after = await engine.counters()
    computed = "local_compute"
    assert after.prompt_tokens_by_source[computed] - before.prompt_tokens_by_source[computed] >= len(ids)
    assert after.prefix_queries - before.prefix_queries >= len(ids)


@pytest.mark.parametrize(
    "generation",
    [
        Generation("nope", (1, 2), "s", max_tokens=1),
        Generation("", (10**7,), "s", max_tokens=1),
        Generation("", (1,), "a@b", max_tokens=1),
        Generation("", (1,), "s", max_tokens=0),
        Generation("", (), "s", max_tokens=1),
    ],
)
async def test_what_vllm_refuses_is_a_bad_parameter(
    engine: VllmEngine, live_engine: LiveEngine, generation: Generation
) -> None:
    model = generation.model or live_engine.model_name
    with pytest.raises(InvalidParameterError):
        await engine.complete(
            Generation(model, generation.token_ids, generation.cache_salt, generation.max_tokens)
        )


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
