"""Requests the gateway refuses, and engines it cannot get an answer from."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx2
import pytest

from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import MAX_BODY_BYTES, TENANT, Gateway, gateway, settings_for

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SESSION = {"CWM-Session-Id": "s1"}
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hey"}]}


def error_of(answer: httpx2.Response, status: int, code: str) -> dict[str, object]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, object] = answer.json()["error"]
    assert error["code"] == code
    assert error.keys() == {"message", "type", "param", "code", "retryable", "context"}
    return error


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff\xff", b"nul", b'{"temperature":NaN}'])
async def test_a_body_that_is_no_json_object_is_refused(cwm: Gateway, vllm: FakeVllm, body: bytes) -> None:
    error_of(await cwm.client.post(CHAT, content=body), 400, "CWM-1003")
    assert not vllm.turns


@pytest.mark.parametrize("field", ["cache_salt", "kv_transfer_params"])
@pytest.mark.parametrize("headers", [{}, SESSION])
async def test_fields_that_would_leave_the_tenant_are_refused(
    cwm: Gateway, vllm: FakeVllm, field: str, headers: dict[str, str]
) -> None:
    error = error_of(await cwm.client.post(CHAT, json={**ASK, field: None}, headers=headers), 400, "CWM-1003")
    assert error["param"] == field
    assert "set by the gateway" in str(error["message"])
    assert not vllm.turns


@pytest.mark.parametrize(
    ("param", "fields", "headers"),
    [
        ("functions", {"functions": [{"name": "f"}]}, {}),
        ("priority", {"priority": -5}, SESSION),
        ("x-data-parallel-rank", {}, {"X-data-parallel-rank": "3"}),
        ("x-vllm-priority", {}, {"X-Vllm-Priority": "-99", **SESSION}),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://[::1]/"}}],
                    }
                ]
            },
            SESSION,
        ),
    ],
)
async def test_what_a_caller_has_no_business_to_set_is_refused_by_name_and_not_dropped(
    cwm: Gateway, vllm: FakeVllm, param: str, fields: dict[str, object], headers: dict[str, str]
) -> None:
    answer = await cwm.client.post(CHAT, json={**ASK, **fields}, headers=headers)
    assert error_of(answer, 400, "CWM-1003")["param"] == param
    assert not vllm.turns


@pytest.mark.parametrize("headers", [{}, SESSION])
async def test_a_schema_that_holds_the_engine_for_everybody_does_not_reach_it(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str]
) -> None:
    pattern = {"type": "string", "pattern": "(a{1,100}){1,100}"}
    schema = {"type": "object", "properties": {f"p{number}": pattern for number in range(40)}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await cwm.client.post(CHAT, json={**ASK, "response_format": wanted}, headers=headers)
    error = error_of(answer, 400, "CWM-1003")
    assert error["param"] == "response_format"
    assert error["context"] == {"field": "response_format", "limit": 2_000, "setting": "CWM_SCHEMA_EXPANSION"}
    assert not vllm.turns


@pytest.mark.parametrize("session_id", ["", "../x", "a b", "a" * 65, "x'; DROP TABLE sessions;--", "é"])
async def test_a_session_id_that_is_none_is_refused(cwm: Gateway, session_id: str) -> None:
    answer = await cwm.client.post(CHAT, json=ASK, headers=[(b"CWM-Session-Id", session_id.encode())])
    error_of(answer, 400, "CWM-1001")


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
async def test_a_session_takes_one_prompt_and_a_request_without_one_any_number(
    cwm: Gateway, prompt: list[object]
) -> None:
    body = {"model": MODEL, "prompt": prompt}
    error_of(await cwm.client.post(COMPLETIONS, json=body, headers=SESSION), 400, "CWM-1003")
    assert await cwm.registry.session(TENANT, "s1") is None


async def test_a_caller_who_may_not_enter_does_not(cwm: Gateway, vllm: FakeVllm) -> None:
    error_of(await cwm.client.post(CHAT, json=ASK, headers={"x-tenant": "nobody"}), 403, "CWM-9002")
    error_of(await cwm.client.get("/v1/models", headers={"x-tenant": "nobody"}), 403, "CWM-9002")
    assert not vllm.seen


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("DELETE", COMPLETIONS, "POST"),
        ("POST", "/v1/models", "GET"),
        ("HEAD", "/v1/models", "GET"),
        ("PUT", f"/v1/models/{MODEL}", "GET"),
    ],
)
async def test_other_methods_are_refused(cwm: Gateway, method: str, path: str, allowed: str) -> None:
    answer = await cwm.client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    if method != "HEAD":
        error_of(answer, 405, "CWM-1003")


async def test_what_is_not_served_is_not_found(cwm: Gateway) -> None:
    error_of(await cwm.client.post("/v1/audio/transcriptions", json={}), 404, "CWM-1003")


async def test_models_are_listed_as_the_engine_lists_them_and_told_one_by_one(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:
        straight = await client.get(vllm.url + "/v1/models")
    assert (await cwm.client.get("/v1/models")).content == straight.content
    assert (await cwm.client.get(f"/v1/models/{MODEL}")).json() == straight.json()["data"][0]
    missing = await cwm.client.get("/v1/models/org/nope")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_an_engine_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with gateway(settings_for(url), tmp_path) as cwm:
        for answer in (await cwm.client.post(CHAT, json=ASK), await cwm.client.get("/v1/models")):
            error = error_of(answer, 503, "CWM-5001")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.headers["x-should-retry"] == "true"
            assert error["retryable"] is True
            assert error["context"] == {}
            assert url not in answer.text


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (Behaviour.HANGS_UP_WITHOUT_ANSWER, "CWM-5001"),
        (Behaviour.DIES_MID_BODY, "CWM-5001"),
        (Behaviour.TALKS_GARBAGE, "CWM-5002"),
    ],
)
@pytest.mark.parametrize("headers", [{}, SESSION])
async def test_an_engine_that_breaks_off_is_unavailable(
    cwm: Gateway, vllm: FakeVllm, behaviour: Behaviour, code: str, headers: dict[str, str]
) -> None:
    vllm.behaviour = behaviour
    error_of(await cwm.client.post(CHAT, json=ASK, headers=headers), 503, code)
    vllm.behaviour = Behaviour.NORMAL
    assert (await cwm.client.post(CHAT, json=ASK, headers=headers)).status_code == 200


async def test_an_engine_that_refuses_the_gateways_key_is_not_the_clients_fault(
    cwm: Gateway, vllm: FakeVllm
) -> None:
    vllm.behaviour = Behaviour.REFUSES_KEY
    error = error_of(await cwm.client.post(CHAT, json=ASK), 503, "CWM-5002")
    assert "CWM_VLLM_API_KEY" in str(error["message"])


async def test_a_dead_engines_500_passes_as_it_said_it(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.ENGINE_DEAD
    answer = await cwm.client.post(CHAT, json=ASK, headers=SESSION)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "Internal server error"
    assert await cwm.tokens("s1") == ()


async def test_an_answer_that_is_no_json_passes_and_records_nothing(cwm: Gateway, vllm: FakeVllm) -> None:
    vllm.behaviour = Behaviour.ANSWERS_GARBAGE
    answer = await cwm.client.post(CHAT, json=ASK, headers=SESSION)
    assert (answer.status_code, answer.content) == (200, b"<html>no json</html>")
    assert await cwm.tokens("s1") == ()


@pytest.mark.parametrize("headers", [{}, SESSION])
async def test_a_stream_the_engine_dies_in_ends_with_an_error_and_no_done(
    cwm: Gateway, vllm: FakeVllm, headers: dict[str, str]
) -> None:
    vllm.behaviour = Behaviour.DIES_MID_STREAM
    answer = await cwm.client.post(CHAT, json={**ASK, "stream": True}, headers=headers)
    events = [line for line in answer.text.split("\n\n") if line]
    assert len(events) == 4
    assert events[-1].startswith('data: {"error":{')
    assert '"CWM-5001"' in events[-1]
    assert "half an ev" not in answer.text
    if headers:
        assert await cwm.tokens("s1") == (*b"hey", 1000, 1001)


async def test_a_declared_body_over_the_limit_is_refused_unread(cwm: Gateway, vllm: FakeVllm) -> None:
    answer = await cwm.client.post(CHAT, content=b" " * (MAX_BODY_BYTES + 1))
    error_of(answer, 413, "CWM-1003")
    assert answer.headers["connection"] == "close"
    assert not vllm.seen


async def test_an_undeclared_body_is_cut_off_at_the_limit(cwm: Gateway, vllm: FakeVllm) -> None:
    sent = 0

    async def endless() -> object:
        nonlocal sent
        while sent < 1000:
            sent += 1
            yield b" " * 65536

    answer = await cwm.client.post(CHAT, content=endless())  # type: ignore[arg-type]
    error_of(answer, 413, "CWM-1003")
    assert answer.headers["connection"] == "close"
    assert not vllm.seen


async def test_a_body_at_the_limit_passes(cwm: Gateway) -> None:
    body = b'{"model":"fake","prompt":"a"' + b" " * MAX_BODY_BYTES
    assert (await cwm.client.post(COMPLETIONS, content=body[: MAX_BODY_BYTES - 1] + b"}")).status_code == 200
