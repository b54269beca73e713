"""The vLLM client against a vLLM that misbehaves."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from cwm.adapters.vllm import wire
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineResponseError,
    EngineTimeoutError,
    InvalidParameterError,
)
from cwm.ports.engine import Generation, ServedModel
from cwm.settings import Engine
from tests.adapters.vllm.fake_vllm import ANSWER, MAX_MODEL_LEN, MODEL, SPECIAL, Behaviour, FakeVllm

GENERATION = Generation(
    MODEL, (1, 2, 3), "salt-1", max_tokens=4, sampling={"temperature": 0, "cache_salt": "no"}
)


async def test_a_completion_sends_ids_and_salt_and_brings_ids_back(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    done = await engine.complete(GENERATION)
    assert (done.text, done.token_ids) == ("once upon a time", (1000, 1001, 1002, 1003))
    assert (done.prompt_tokens, done.cached_tokens, done.finish_reason) == (3, 1, "length")
    assert done.fingerprint == "vllm-fake"
    sent = vllm.turns[0]
    assert sent.json["prompt"] == [1, 2, 3]
    assert sent.json["cache_salt"] == "salt-1"
    assert sent.json["temperature"] == 0
    assert sent.headers["authorization"] == "Bearer k1"


async def test_limits_and_weights_are_sent_where_they_are_set(engine: VllmEngine, vllm: FakeVllm) -> None:
    done = await engine.complete(GENERATION)
    await engine.complete(replace(GENERATION, load_tokens=0, store_tokens=64, weights="w-1"))
    await engine.complete(replace(GENERATION, drop_after=0, tell_loaded=True))
    async for _ in engine.stream(GENERATION):
        pass
    assert [turn.json.get("kv_transfer_params") for turn in vllm.turns] == [
        {"cwm.tell_weights": True},
        {
            "cwm.load_tokens": 0,
            "lmcache.max_offload_tokens": 64,
            "cwm.weights": "w-1",
            "cwm.tell_weights": True,
        },
        {"cwm.tell_loaded": True, "cwm.drop_after": 0, "cwm.tell_weights": True},
        None,
    ]
    assert (done.loaded_tokens, done.weights) == (None, None)
    assert (done.resting_tokens, done.dropped_blocks) == (None, None)


def test_an_answer_tells_what_its_prompt_rests_on_and_what_was_dropped() -> None:
    answer = {
        "choices": [{"text": "", "token_ids": [7], "finish_reason": "length"}],
        "usage": {"prompt_tokens": 100},
        "kv_transfer_params": {"cwm.loaded_tokens": 0, "cwm.resting_tokens": 64, "cwm.dropped_blocks": 3},
    }
    done = wire.completion(answer, 100)
    assert (done.loaded_tokens, done.resting_tokens, done.dropped_blocks) == (0, 64, 3)


async def test_an_engine_that_reuses_no_kv_says_why_and_what_its_blocks_are() -> None:
    answer = {
        "choices": [{"text": "on", "token_ids": [7], "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3},
    }
    plain = wire.completion(answer, 100)
    assert (plain.no_reuse, plain.block_size, plain.world_size) == ("", None, None)
    told = {"cwm.no_reuse": "Nothing is stored.", "cwm.block_size": 16, "cwm.world_size": 2}
    closed = wire.completion({**answer, "kv_transfer_params": told}, 3)
    assert (closed.no_reuse, closed.block_size, closed.world_size) == ("Nothing is stored.", 16, 2)


async def test_a_streamed_completion_brings_the_same(engine: VllmEngine) -> None:
    deltas = [delta async for delta in engine.stream(GENERATION)]
    assert "".join(d.text for d in deltas) == "once upon a time"
    assert sum((d.token_ids for d in deltas), ()) == (1000, 1001, 1002, 1003)
    assert [d.finish_reason for d in deltas if d.finish_reason] == ["length"]
    assert (deltas[-1].prompt_tokens, deltas[-1].cached_tokens) == (3, 1)


async def test_a_stream_split_at_every_byte_is_understood(engine: VllmEngine, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.SPLITS_EVERY_BYTE
    deltas = [d async for d in engine.stream(Generation(MODEL, (1,), "s", max_tokens=8))]
    assert "".join(d.text for d in deltas) == "".join(ANSWER)


async def test_facts_are_read(engine: VllmEngine) -> None:
    assert await engine.models() == [ServedModel(MODEL, "/models/fake", MAX_MODEL_LEN)]
    assert await engine.version() == "0.0.1"
    assert await engine.tokenize(MODEL, "ab", add_special_tokens=False) == (97, 98)
    assert await engine.render(MODEL, [{"role": "user", "content": "c"}]) == (99,)
    await engine.health()


async def test_special_tokens_are_asked_for_once(engine: VllmEngine, vllm: FakeVllm) -> None:
    assert await engine.special_tokens(MODEL) == {"<s>", SPECIAL}
    assert await engine.special_tokens(MODEL) == {"<s>", SPECIAL}
    assert [s.target for s in vllm.seen] == ["/tokenizer_info"]


async def test_an_engine_that_does_not_tell_its_tokenizer_has_no_special_tokens_and_no_template(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    vllm.has_tokenizer_info = False
    assert await engine.special_tokens(MODEL) == frozenset()
    assert await engine.chat_template(MODEL) is None


async def test_what_shapes_turns_and_kv_is_asked_for_each_time(engine: VllmEngine, vllm: FakeVllm) -> None:
    for _ in range(2):
        assert await engine.chat_template(MODEL) == "{{ messages }}"
        assert await engine.kv_dtype() == "auto"
    assert [s.target for s in vllm.seen] == 2 * ["/tokenizer_info", "/metrics"]


async def test_tools_are_known_to_be_served_refused_or_neither(engine: VllmEngine, vllm: FakeVllm) -> None:
    assert await engine.require_tools(MODEL, []) is False
    vllm.render_status = 200
    assert await engine.require_tools(MODEL, [{"type": "function"}]) is True
    assert vllm.seen[-1].json["tools"] == [{"type": "function"}]
    vllm.render_status = 400
    with pytest.raises(InvalidParameterError, match="requires --tool-call-parser"):
        await engine.require_tools(MODEL, [])


async def test_an_engine_that_is_not_there_is_named_with_what_to_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    engine = VllmEngine(Engine(vllm_url=url, connect_timeout_seconds=1))
    with pytest.raises(EngineConnectionError, match="CWM_VLLM_URL") as told:
        await engine.complete(GENERATION)
    assert told.value.context["url"] == url
    assert told.value.__cause__ is not None
    await engine.aclose()


async def test_an_engine_that_does_not_answer_in_time_is_a_timeout(vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.WAITS_BEFORE_ANSWERING
    engine = VllmEngine(Engine(vllm_url=vllm.url, request_timeout_seconds=0.2))
    with pytest.raises(EngineTimeoutError, match=r"0\.2 s"):
        await engine.complete(GENERATION)
    await engine.aclose()


@pytest.mark.parametrize(
    ("behaviour", "error", "said"),
    [
        (Behaviour.ENGINE_DEAD, EngineResponseError, "Internal server error"),
        (Behaviour.ANSWERS_GARBAGE, EngineResponseError, "is there a vLLM at this URL"),
        (Behaviour.TALKS_GARBAGE, EngineResponseError, "did not speak HTTP"),
        (Behaviour.HANGS_UP_WITHOUT_ANSWER, EngineConnectionError, "closed the connection"),
        (Behaviour.DIES_MID_BODY, EngineConnectionError, "before the answer was complete"),
        (Behaviour.REFUSES_KEY, EngineResponseError, "CWM_VLLM_API_KEY"),
    ],
)
async def test_each_way_to_fail_has_its_own_error(
    engine: VllmEngine, vllm: FakeVllm, behaviour: Behaviour, error: type[CwmError], said: str
) -> None:
    vllm.behaviour = behaviour
    with pytest.raises(error, match=said):
        await engine.complete(GENERATION)
    assert len(vllm.turns) == 1


@pytest.mark.parametrize("behaviour", [Behaviour.DIES_MID_STREAM, Behaviour.ENDS_WITHOUT_DONE])
async def test_a_stream_that_breaks_off_says_so(
    engine: VllmEngine, vllm: FakeVllm, behaviour: Behaviour
) -> None:
    vllm.behaviour = behaviour
    seen: list[int] = []

    async def listen() -> None:
        async for delta in engine.stream(GENERATION):
            seen.extend(delta.token_ids)

    with pytest.raises(EngineConnectionError):
        await listen()
    assert seen[:3] == [1000, 1001, 1002]


async def test_what_vllm_refuses_is_told_in_its_words(engine: VllmEngine) -> None:
    with pytest.raises(InvalidParameterError, match="max_tokens must be at least 1") as told:
        await engine.complete(Generation(MODEL, (1,), "s", max_tokens=0))
    assert told.value.context["field"] == "max_tokens"
    with pytest.raises(InvalidParameterError, match="does not exist") as told:
        await engine.complete(Generation("nope", (1,), "s", max_tokens=1))
    assert told.value.context["model"] == "nope"


async def test_a_pooled_connection_that_died_is_replaced_once(engine: VllmEngine, vllm: FakeVllm) -> None:
    await engine.health()
    vllm.behaviour = Behaviour.HANGS_UP_ON_USED_CONNECTIONS
    assert (await engine.complete(GENERATION)).token_ids[0] == 1000
    assert vllm.connections == 2


async def test_a_new_connection_that_dies_is_not_tried_again_for_a_generation(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.HANGS_UP_WITHOUT_ANSWER
    with pytest.raises(EngineConnectionError):
        await engine.complete(GENERATION)
    assert len(vllm.turns) == 1


async def test_what_computes_nothing_is_asked_once_more_when_its_connection_breaks(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.HANGS_UP_ON_EVERY_REQUEST
    for question in (engine.models(), engine.tokenize(MODEL, "once", add_special_tokens=True)):
        with pytest.raises(EngineConnectionError):
            await question
    assert [seen.target for seen in vllm.seen] == ["/v1/models", "/v1/models", "/tokenize", "/tokenize"]


async def test_forwarding_keeps_bytes_and_status_and_drops_what_is_between_two_hops(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    headers = {"X-Request-Id": "r1", "authorization": "Bearer client", "connection": "close", "x-note": "é"}
    body = b'{"model":"nope", "x" :1}'
    async with engine.forward("POST", "/v1/completions?a=b", body, headers) as response:
        content = b"".join([chunk async for chunk in response.chunks()])
    assert response.status == 404
    assert b"does not exist" in content
    names = {name.lower() for name, _ in response.headers}
    assert b"x-request-id" in names
    assert not names & {b"connection", b"transfer-encoding"}
    seen = vllm.seen[-1]
    assert (seen.target, seen.body) == ("/v1/completions?a=b", body)
    assert seen.headers["authorization"] == "Bearer k1"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["x-request-id"] == "r1"


async def test_of_an_engines_headers_pass_those_that_clients_need_and_no_others(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    needed = {
        "x-request-id": "r1",
        "retry-after": "3",
        "x-ratelimit-remaining-tokens": "7",
        "openai-processing-ms": "9",
    }
    others = {
        "set-cookie": "a=b",
        "location": "/elsewhere",
        "access-control-allow-origin": "*",
        "x-frame-options": "DENY",
        "content-security-policy": "sandbox",
        "strict-transport-security": "max-age=1",
    }
    vllm.answer_headers = "".join(f"{name}: {value}\r\n" for name, value in (needed | others).items())
    async with engine.forward("GET", "/v1/models", b"", {}) as response:
        passed = {name.decode().lower(): value.decode() for name, value in response.headers}
    assert passed.items() >= needed.items()
    assert passed.keys() - needed.keys() <= {"content-type", "content-length"}


async def test_a_redirect_of_an_engine_is_an_error_of_the_engine(engine: VllmEngine, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.REDIRECTS
    with pytest.raises(EngineResponseError, match="redirect"):
        async with engine.forward("POST", "/v1/completions", b"{}", {}):
            pass


async def test_many_requests_share_few_connections(engine: VllmEngine, vllm: FakeVllm) -> None:
    for _ in range(3):
        await asyncio.gather(*(engine.complete(GENERATION) for _ in range(4)))
    assert vllm.connections <= 4


def test_an_adapter_has_the_length_and_the_path_of_the_model_that_it_changes() -> None:
    """As vLLM lists them: without a length, and under the base's name."""
    base = {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 4096}
    adapters = [
        {"id": "poet", "root": "/adapters/poet", "parent": "base", "max_model_len": None},
        {"id": "clerk", "root": "/adapters/clerk", "parent": "a name that is not served"},
    ]
    assert wire.models({"data": [base, *adapters]}) == [
        ServedModel("base", "/models/base", 4096),
        ServedModel("poet", "/models/base", 4096, "/adapters/poet"),
        ServedModel("clerk", "/models/base", 4096, "/adapters/clerk"),
    ]
