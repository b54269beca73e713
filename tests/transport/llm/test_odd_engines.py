"""An engine that reports what cannot be, or never ends what it says: no turn is lost by it, and no memory."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from cwm.adapters.vllm.turns.wire import VllmWire
from tests.adapters.vllm.fake_vllm import MODEL, Behaviour, FakeVllm
from tests.transport.llm.gateway import TENANT, Gateway

pytestmark = pytest.mark.slow

SESSION = {"CWM-Session-Id": "s1"}
ANSWER_IDS = tuple(range(1000, 1008))
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hey"}]},
    "/v1/completions": {"prompt": "hey"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hey"}], "max_tokens": 8},
    "/v1/responses": {"input": "hey"},
}
FIGURES = ["-7", "1e400", "2.5", "true", '"many"', "null", str(2**53 + 1), str(2**40), "[]", "{}"]


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", REQUESTS)
async def test_a_figure_that_cannot_be_one_costs_no_turn(
    cwm: Gateway, vllm: FakeVllm, path: str, stream: bool, figure: str
) -> None:
    vllm.figure = figure
    body = {"model": MODEL, "stream": stream, **REQUESTS[path]}
    if stream and path in {"/v1/chat/completions", "/v1/completions"}:
        body["stream_options"] = {"include_usage": True}
    answer = await cwm.client.post(path, json=body, headers=SESSION)
    assert answer.status_code == 200
    assert figure.encode() in answer.content

    turn = await cwm.registry.turn(TENANT, answer.headers["cwm-turn"])
    assert turn is not None
    ids = await cwm.registry.turn_tokens(turn)
    assert ids[-len(ANSWER_IDS) :] == ANSWER_IDS
    assert turn.cached_tokens in {None, 0}
    assert cwm.meter.counts["event engine_figure_unknown"] > 0 or figure == "null"


@pytest.mark.parametrize("headers", [{}, SESSION])
@pytest.mark.parametrize("path", REQUESTS)
async def test_an_event_that_never_ends_is_given_up_and_the_client_has_what_came_before(
    cwm: Gateway, vllm: FakeVllm, path: str, headers: dict[str, str]
) -> None:
    vllm.behaviour = Behaviour.NEVER_ENDS_AN_EVENT
    cwm.pass_through.wire = VllmWire(max_answer_bytes=2**20)
    body = {"model": MODEL, "stream": True, **REQUESTS[path]}
    answer: httpx2.Response = await cwm.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200
    assert b"xxxx" not in answer.content
    *before, last = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    assert before
    assert "CWM_MAX_ANSWER_BYTES" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert vllm.turns[-1].written < 8 * 2**20
    if headers and path in {"/v1/chat/completions", "/v1/completions"}:
        turn = await cwm.registry.turn(TENANT, answer.headers["cwm-turn"])
        assert turn is not None
        assert (await cwm.registry.turn_tokens(turn))[-1] in ANSWER_IDS
