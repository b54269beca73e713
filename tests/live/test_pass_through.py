"""The pass-through in front of a real vLLM: same bytes, exact ids, the official client, clients that leave."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import openai
import pytest

from cwm.adapters.vllm.wire import counters
from cwm.domain.prefix import TokenIds
from tests.live.engine import LiveEngine
from tests.transport.llm.gateway import TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.live

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
# A busy vLLM puts two tokens into one event now and then: two streams must be equal once in so many.
ATTEMPTS = 10
STREAMED = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def cwm(live_engine: LiveEngine, tmp_path: Path) -> AsyncIterator[Gateway]:
    settings = settings_for(live_engine.vllm_url, live_engine.lmcache_url, live_engine.coordinator_url)
    async with gateway(settings, tmp_path) as running:
        yield running


@pytest.fixture
async def vllm(live_engine: LiveEngine) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=live_engine.vllm_url, timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture
def model(live_engine: LiveEngine) -> str:
    return str(live_engine.model_name)


def session() -> dict[str, str]:
    return {"CWM-Session-Id": f"t-{uuid4().hex[:16]}"}


def request(path: str, model: str, **more: Any) -> dict[str, Any]:
    text = 'He said "token_ids":[1,2] and \\ "prompt_token_ids":[3]. ' + uuid4().hex
    ask = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": model, **ask, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **more}


def comparable(content: bytes) -> bytes:
    """Less what differs between two equal requests: ids, times, measurements, cached tokens."""
    content = re.sub(rb'"id":"(cmpl|chatcmpl)-[^"]*"', b'"id":0', content)
    content = re.sub(rb'"created":\d+', b'"created":0', content)
    content = re.sub(rb'"(created_cache_tokens|cached_tokens)":(\d+|null)', rb'"\1":0', content)
    content = re.sub(rb'"metrics":\{[^}]*\}', b'"metrics":0', content)
    if not content.startswith(b"data:"):
        return content
    # The events of several choices are interleaved as chance has it.
    ordered: list[bytes] = sorted(content.split(b"\n\n"), key=lambda event: event.find(b'"index":1') > 0)
    return b"\n\n".join(ordered)


def salted(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**body, "cache_salt": f"test-{uuid4().hex[:12]}", **more}


@BOTH
@STREAMED
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"return_token_ids": True},
        {"logprobs": 1},
        {"n": 2, "temperature": 0.5, "seed": 7},
        {"stop": ["e"], "ignore_eos": False},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
    ids=str,
)
async def test_the_client_gets_the_bytes_vllm_would_have_sent(
    cwm: Gateway,
    vllm: httpx2.AsyncClient,
    model: str,
    path: str,
    stream: bool,
    recorded: bool,
    more: dict[str, Any],
) -> None:
    if path == CHAT and "logprobs" in more:
        more = {"logprobs": True, "top_logprobs": 2}
    if not stream:
        more = {name: value for name, value in more.items() if name != "stream_options"}
    headers = session() if recorded else {}
    for attempt in range(ATTEMPTS):
        body = request(path, model, stream=stream, **{"max_tokens": 8, **more})
        through = await cwm.client.post(path, json=body, headers=headers)
        straight = await vllm.post(path, json=salted(body))
        assert straight.status_code == 200
        if comparable(through.content) == comparable(straight.content):
            break
        assert stream
        assert attempt < ATTEMPTS - 1
    # These speak of the one connection; `vary` of the engine's own answers to other origins.
    hop = {"date", "server", "transfer-encoding", "content-length", "vary"}
    through_headers = [h for h in through.headers.multi_items() if not h[0].startswith("cwm-")]
    assert [h for h in through_headers if h[0] not in hop] == [
        h for h in straight.headers.multi_items() if h[0] not in hop
    ]


async def exact_ids(vllm: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> TokenIds:
    """What a whole answer of vLLM itself tells for the same request."""
    straight = await vllm.post(path, json=salted({**body, "stream": False}, return_token_ids=True))
    answer = straight.json()
    choice = answer["choices"][0]
    prompt = answer.get("prompt_token_ids") or choice["prompt_token_ids"]
    return (*prompt, *choice["token_ids"])


@BOTH
async def test_the_recorded_ids_of_an_answer_with_much_beside_them_are_those_vllm_tells(
    cwm: Gateway, vllm: httpx2.AsyncClient, model: str, path: str
) -> None:
    likeliest = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 20}
    headers, body = session(), request(path, model, max_tokens=500, **likeliest)
    answer = await cwm.client.post(path, json=body, headers=headers)
    assert len(answer.content) > 256 * 1024
    assert await cwm.tokens(headers["CWM-Session-Id"]) == await exact_ids(vllm, path, body)


@BOTH
@STREAMED
@pytest.mark.parametrize("more", [{}, {"stop": ["a", "e", "i", "o"]}, {"ignore_eos": False}], ids=str)
async def test_the_recorded_ids_are_those_vllm_tells(
    cwm: Gateway, vllm: httpx2.AsyncClient, model: str, path: str, stream: bool, more: dict[str, Any]
) -> None:
    headers, body = session(), request(path, model, stream=stream, **more)
    await cwm.client.post(path, json=body, headers=headers)
    assert await cwm.tokens(headers["CWM-Session-Id"]) == await exact_ids(vllm, path, body)


async def test_a_second_turn_finds_the_first_one_cached(
    cwm: Gateway, model: str, live_engine: LiveEngine
) -> None:
    headers = session()
    text = " ".join(uuid4().hex for _ in range(20))
    await cwm.client.post(COMPLETIONS, json=request(COMPLETIONS, model, prompt=text), headers=headers)
    ids = await cwm.tokens(headers["CWM-Session-Id"])
    body = request(COMPLETIONS, model, prompt=list(ids))
    answer = await cwm.client.post(COMPLETIONS, json=body, headers=headers)
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= len(ids) - live_engine.chunk_size
    stranger = await cwm.client.post(COMPLETIONS, json=body, headers={**headers, "x-tenant": uuid4().hex})
    assert stranger.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"model": "nope"},
        {"temperature": "hot"},
        {"max_tokens": -1},
        {"prompt": ["x" * 40000], "messages": [{"role": "user", "content": "x " * 20000}]},
        {"messages": "no list", "prompt": {"no": "text"}},
    ],
    ids=str,
)
@BOTH
async def test_what_vllm_refuses_is_refused_in_its_words_with_the_type_that_clients_know(
    cwm: Gateway, vllm: httpx2.AsyncClient, model: str, path: str, wrong: dict[str, Any]
) -> None:
    kept = "prompt" if path == COMPLETIONS else "messages"
    body = {
        **request(path, model),
        **{k: v for k, v in wrong.items() if k == kept or k not in {"prompt", "messages"}},
    }
    headers = session()
    through = await cwm.client.post(path, json=body, headers=headers)
    straight = await vllm.post(path, json=salted(body))
    assert straight.status_code >= 400
    assert through.status_code == straight.status_code
    refused, original = (json.loads(_without_input(each.content))["error"] for each in (through, straight))
    assert (refused["message"], refused["type"]) == (_told(original["message"]), "invalid_request_error")
    known = await cwm.registry.session(TENANT, headers["CWM-Session-Id"])
    assert known is None or known.token_count == 0


def _told(message: str) -> str:
    """The first of vLLM's errors of each field, in a sentence; what is no list of errors, as it is."""
    if "validation error" not in message:
        return message
    errors = [ast.literal_eval(line.strip()) for line in message.splitlines()[1:]]
    first = {error["loc"]: error["msg"] for error in reversed(errors)}
    return "; ".join(f"{field.removeprefix('body.')}: {text}" for field, text in reversed(first.items()))


def _without_input(content: bytes) -> bytes:
    """vLLM counts the fields it got; the gateway adds some."""
    return re.sub(rb"<dict of \d+ items>", b"<dict>", content)


async def test_models_are_vllms(cwm: Gateway, vllm: httpx2.AsyncClient, model: str) -> None:
    through, straight = await cwm.client.get("/v1/models"), await vllm.get("/v1/models")
    assert [m["id"] for m in through.json()["data"]] == [m["id"] for m in straight.json()["data"]]
    assert (await cwm.client.get(f"/v1/models/{model}")).json()["root"] == straight.json()["data"][0]["root"]


async def test_the_official_client_works(cwm: Gateway, model: str) -> None:
    headers = session()
    async with openai.AsyncOpenAI(base_url=f"{cwm.url}/v1", api_key="any", max_retries=0) as client:
        assert (await client.models.list()).data[0].id == model
        assert (await client.models.retrieve(model)).id == model
        whole = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=12,
            temperature=0,
            extra_headers=headers,
        )
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=12,
            temperature=0,
            stream=True,
            extra_headers=headers,
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert text == whole.choices[0].message.content
        plain = await client.completions.create(model=model, prompt="hi", max_tokens=3)
        assert plain.usage is not None
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError, match="set by the gateway") as refused:
            await client.completions.create(model=model, prompt="hi", extra_body={"cache_salt": "mine"})
        assert refused.value.code == "CWM-1003"
    known = await cwm.registry.session(TENANT, headers["CWM-Session-Id"])
    assert known is not None
    assert known.revision == 2


async def test_the_official_client_without_async_works(cwm: Gateway, model: str) -> None:
    def talk() -> str:
        with openai.OpenAI(base_url=f"{cwm.url}/v1", api_key="any", max_retries=0) as client:
            stream = client.completions.create(
                model=model, prompt="hi", max_tokens=8, temperature=0, stream=True, extra_headers=session()
            )
            return "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(talk)


async def leave_after(cwm: Gateway, body: dict[str, Any], headers: dict[str, str], events: int) -> None:
    """Read so many events of a stream, then hang up."""
    async with cwm.client.stream("POST", CHAT, json=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            events -= line.startswith("data:")
            if events <= 0:
                break


async def test_a_client_that_leaves_half_way_has_what_it_got_recorded(
    cwm: Gateway, vllm: httpx2.AsyncClient, model: str
) -> None:
    headers, body = session(), request(CHAT, model, stream=True, max_tokens=400)
    await leave_after(cwm, body, headers, 12)
    await cwm.turns_ended(headers["CWM-Session-Id"])
    recorded = await cwm.tokens(headers["CWM-Session-Id"])
    whole = await exact_ids(vllm, CHAT, body)
    prompt = len(whole) - 400
    assert prompt + 10 <= len(recorded) < len(whole)
    assert recorded == whole[: len(recorded)]


async def test_twenty_clients_that_leave_at_any_moment_leave_a_living_engine(
    cwm: Gateway, vllm: httpx2.AsyncClient, model: str
) -> None:
    chance = random.Random(20)
    long = " ".join(uuid4().hex for _ in range(60))
    for turn in range(20):
        headers = session()
        body = request(CHAT, model, stream=turn % 3 != 0, max_tokens=64)
        # Every other prompt was computed before, so that leaving meets a load.
        body["messages"] = [{"role": "user", "content": long if turn % 2 else long[turn * 10 :]}]
        sending = asyncio.create_task(leave_after(cwm, body, headers, chance.randint(1, 30)))
        await asyncio.wait({sending}, timeout=chance.uniform(0.001, 0.3))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert (await vllm.get("/health")).status_code == 200
    await cwm.pass_through.drain(60)
    assert (await cwm.client.post(CHAT, json=request(CHAT, model))).status_code == 200


async def requests_running(vllm: httpx2.AsyncClient) -> float:
    return counters((await vllm.get("/metrics")).text).requests_running


@BOTH
@STREAMED
@pytest.mark.parametrize("headers", [{}, session()], ids=["unrecorded", "recorded"])
async def test_a_generation_whose_client_gave_up_ends_and_what_came_of_it_is_recorded(
    cwm: Gateway, vllm: httpx2.AsyncClient, model: str, path: str, stream: bool, headers: dict[str, str]
) -> None:
    body = request(path, model, stream=stream, max_tokens=4000)
    sending = asyncio.create_task(cwm.client.post(path, json=body, headers=headers))
    async with asyncio.timeout(60):
        while not await requests_running(vllm):
            await asyncio.wait({sending}, timeout=0.01)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await cwm.pass_through.drain(60)
        while await requests_running(vllm):  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)
    if headers:
        recorded = await cwm.tokens(headers["CWM-Session-Id"])
        whole = await exact_ids(vllm, path, {**body, "max_tokens": 4})
        assert recorded[: len(whole) - 4] == whole[: len(whole) - 4]
        assert len(whole) - 4 < len(recorded) < 2000


async def test_a_field_of_vllms_own_reaches_it_and_one_that_nobody_knows_is_dropped_and_named(
    cwm: Gateway, model: str
) -> None:
    body = request(COMPLETIONS, model, prompt_logprobs=1)
    first = (await cwm.client.post(COMPLETIONS, json=body, headers=session())).json()
    assert first["choices"][0]["prompt_logprobs"]
    answer = await cwm.client.post(COMPLETIONS, json={**body, "no_such_field": {"a": [1, 2.5, None]}})
    assert (answer.status_code, answer.headers["cwm-dropped"]) == (200, "no_such_field")
