"""An engine goes while it answers: another one goes on, and the client sees one answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.adapters.vllm.fake_vllm import ANSWER, FAILURE, MODEL, Behaviour, FakeVllm, fake_vllm
from tests.transport.llm.gateway import Gateway, gateway, settings_for
from tests.transport.llm.test_turns_through import ANSWER_IDS, BOTH, SESSION, STREAMED, direct, request

pytestmark = pytest.mark.slow

DIES = pytest.mark.parametrize(
    "dies", [Behaviour.DIES_MID_STREAM, Behaviour.GIVES_UP, Behaviour.ENDS_IN_ORDER]
)
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture
async def second() -> AsyncIterator[FakeVllm]:
    async with fake_vllm() as fake:
        fake.render_status = 200
        yield fake


@pytest.fixture
async def fleet(vllm: FakeVllm, second: FakeVllm, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(
        settings_for(vllm.url), tmp_path, others={"second": settings_for(second.url)}
    ) as running:
        yield running


def events(answer: httpx2.Response) -> list[str]:
    """The events of a stream, less what says how much of the prompt was cached, in which engines differ."""
    return [line for line in answer.text.split("\n\n") if line and '"usage"' not in line]


@BOTH
@DIES
@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}, USAGE, {"temperature": 0, "seed": 7}])
async def test_a_stream_goes_on_at_the_next_token_where_its_engine_died(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm, path: str, more: dict[str, Any], dies: Behaviour
) -> None:
    vllm.behaviour = dies
    body = request(path, stream=True, **more)
    answer = await fleet.client.post(path, json=body, headers=SESSION)
    whole = await direct(second, path, body)
    words = "".join(ANSWER)
    assert answer.status_code == 200
    assert events(answer)[-1] == "data: [DONE]"
    assert said(answer, path) == said(whole, path) == words
    assert len([line for line in answer.text.split("\n\n") if '"usage"' in line]) == (
        "stream_options" in more
    )
    assert (await fleet.tokens("s1"))[-len(ANSWER) :] == ANSWER_IDS
    assert fleet.meter.counts["event answer_gone_on"] == 1


@BOTH
@DIES
async def test_a_stream_that_is_not_recorded_goes_on_too_and_its_client_gets_no_ids(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm, path: str, dies: Behaviour
) -> None:
    vllm.behaviour = dies
    body = request(path, stream=True)
    answer = await fleet.client.post(path, json=body, headers={"CWM-Capture": "off"})
    assert said(answer, path) == said(await direct(second, path, body), path)
    assert events(answer)[-1] == "data: [DONE]"
    assert 'token_ids":[' not in answer.text.replace(" ", "")
    assert fleet.meter.counts["event answer_gone_on"] == 1


@BOTH
@pytest.mark.parametrize(
    ("dies", "stream"),
    [
        (Behaviour.HANGS_UP_WITHOUT_ANSWER, False),
        (Behaviour.HANGS_UP_WITHOUT_ANSWER, True),
        (Behaviour.GIVES_UP, False),
    ],
)
async def test_a_request_whose_engine_died_before_it_answered_is_answered_by_another(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm, path: str, dies: Behaviour, stream: bool
) -> None:
    vllm.behaviour = dies
    body = request(path, stream=stream)
    answer = await fleet.client.post(path, json=body, headers=SESSION)
    assert answer.content == (await direct(second, path, body)).content
    assert (await fleet.tokens("s1"))[-len(ANSWER) :] == ANSWER_IDS
    session = await fleet.registry.session("acme", "s1")
    assert session is not None
    assert session.engine == "second"


@pytest.mark.parametrize(
    "more",
    [
        {"seed": 7, "temperature": 1},
        {"frequency_penalty": 1},
        {"response_format": {"type": "json_object"}},
        {"stop": ["."]},
        {"logprobs": True},
        {"logprobs": 0},
    ],
)
async def test_a_stream_whose_rest_is_more_than_a_matter_of_its_tokens_ends_with_an_error(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm, more: dict[str, Any]
) -> None:
    path, vllm.behaviour = "/v1/chat/completions", Behaviour.DIES_MID_STREAM
    answer = await fleet.client.post(path, json=request(path, stream=True, **more), headers=SESSION)
    assert "CWM-5001" in answer.text
    assert "[DONE]" not in answer.text
    assert not second.turns
    assert not fleet.meter.counts["event answer_gone_on"]
    await fleet.turns_ended("s1")
    assert (await fleet.tokens("s1"))[-2:] == ANSWER_IDS[:2]


ERRORS = {
    "/v1/chat/completions": '"code":"CWM-5001"',
    "/v1/messages": "event: error",
    "/v1/responses": "event: error",
}
ENDS = ("[DONE]", "message_stop", "response.completed")


def asked_on(path: str) -> dict[str, Any]:
    hey = [{"role": "user", "content": "hey"}]
    if path == "/v1/responses":
        return {"model": MODEL, "input": hey}
    return {"model": MODEL, "max_tokens": 8, "messages": hey}


@pytest.mark.parametrize("path", ERRORS)
@pytest.mark.parametrize("headers", [SESSION, {"CWM-Capture": "off"}], ids=["recorded", "not recorded"])
async def test_an_answer_that_its_engine_breaks_off_in_order_is_no_whole_one(
    cwm: Gateway, vllm: FakeVllm, path: str, headers: dict[str, str]
) -> None:
    """As on SIGTERM: vLLM ends it in the form of a whole answer."""
    vllm.behaviour = Behaviour.ENDS_IN_ORDER
    ask = asked_on(path)
    stream = await cwm.client.post(path, json={**ask, "stream": True}, headers=headers)
    assert ERRORS[path] in stream.text
    assert not any(end in stream.text for end in ENDS)
    if headers == SESSION:
        await cwm.turns_ended("s1")
        assert {*ANSWER_IDS} > {*await cwm.tokens("s1")} & {*ANSWER_IDS} > set()
    whole = await cwm.client.post(path, json=ask, headers=headers)
    assert whole.status_code in {503, 529}, whole.text
    assert "CWM-5001" in whole.text
    assert whole.headers["x-should-retry"] == "true"


@STREAMED
async def test_what_a_living_engine_says_of_a_failure_is_passed_on(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm, stream: bool
) -> None:
    path, second.weights = "/v1/chat/completions", "others"
    vllm.behaviour = Behaviour.FAILS if stream else Behaviour.ENGINE_DEAD
    body = request(path, stream=stream)
    answer, straight = (
        await fleet.client.post(path, json=body, headers=SESSION),
        await direct(vllm, path, body),
    )
    assert answer.status_code == straight.status_code
    if stream:
        assert answer.content == straight.content
    else:
        assert answer.json()["error"]["message"] == straight.json()["error"]["message"]


@pytest.mark.parametrize("path", ERRORS)
async def test_the_failure_of_an_engine_that_is_gone_is_an_error_of_the_gateway(
    cwm: Gateway, vllm: FakeVllm, path: str
) -> None:
    ask = asked_on(path)
    vllm.behaviour = Behaviour.GIVES_UP
    gone = await cwm.client.post(path, json={**ask, "stream": True}, headers=SESSION)
    assert ERRORS[path] in gone.text
    assert "CWM-5001" in gone.text
    assert FAILURE not in gone.text
    assert not any(end in gone.text for end in ENDS)
    vllm.behaviour = Behaviour.FAILS
    failed = await cwm.client.post(path, json={**ask, "stream": True}, headers=SESSION)
    assert FAILURE in failed.text
    assert "CWM-5001" not in failed.text


async def test_an_engine_of_another_deployment_does_not_go_on(
    fleet: Gateway, vllm: FakeVllm, second: FakeVllm
) -> None:
    path, vllm.behaviour, second.weights = "/v1/chat/completions", Behaviour.DIES_MID_STREAM, "others"
    answer = await fleet.client.post(path, json=request(path, stream=True), headers=SESSION)
    assert "CWM-5001" in answer.text
    assert not second.turns


async def test_a_request_that_kills_engines_is_given_up(
    vllm: FakeVllm, second: FakeVllm, tmp_path: Path
) -> None:
    vllm.behaviour = second.behaviour = Behaviour.HANGS_UP_WITHOUT_ANSWER
    path = "/v1/chat/completions"
    async with fake_vllm() as third:
        others = {"second": settings_for(second.url), "third": settings_for(third.url)}
        async with gateway(settings_for(vllm.url), tmp_path, others=others) as fleet:
            answer = await fleet.client.post(path, json=request(path), headers=SESSION)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "CWM-5001"
    assert not third.turns


def said(answer: httpx2.Response, path: str) -> str:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
    choices = [choice for line in lines if line[:1] == "{" for choice in json.loads(line)["choices"]]
    return "".join(
        choice["delta"].get("content", "") if path.startswith("/v1/chat") else choice["text"]
        for choice in choices
    )
