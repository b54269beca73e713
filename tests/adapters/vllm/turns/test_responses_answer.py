"""An answer of the Responses API: the client gets vLLM's bytes without the ids, and the turn what was said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cwm.adapters.vllm.turns.responses.request import ResponsesRequest
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.ports.turn_wire import PromptUsage, TurnAnswer
from tests.adapters.vllm import fake_responses

WORDS = list(enumerate(["once", " upon", " \u00e9t\u00e9"], start=1000))
NEW = tuple(token for token, _ in WORDS)
CALL: dict[str, Any] = {"tool_choice": {"type": "function", "name": "look"}}
CHOICES = pytest.mark.parametrize("more", [{}, CALL])


def answer_to(fields: dict[str, Any], *, streamed: bool, model: str = "m") -> TurnAnswer:
    body = json.dumps({"model": "m", "input": "hi", **fields}).encode()
    request = VllmWire().read("/v1/responses", body)
    assert isinstance(request, ResponsesRequest)
    return request.addressed_to(model, 512).answer(status=200, streamed=streamed, recorded=True, session="s")


def events(fields: dict[str, Any], *, told: bool) -> list[bytes]:
    return list(fake_responses.events({"input": "hi", **fields}, "m", WORDS, told=told))


@CHOICES
def test_a_stream_cut_anywhere_reaches_the_client_byte_for_byte_without_the_ids(more: dict[str, Any]) -> None:
    told, bare = b"".join(events(more, told=True)), b"".join(events(more, told=False))
    for size in (1, 7, len(told)):
        answer = answer_to(more, streamed=True)
        pieces = [told[at : at + size] for at in range(0, len(told), size)]
        assert b"".join(map(answer.feed, pieces)) + answer.finish() == bare
        assert answer.ended
        assert answer.token_ids() == (*b"hi", *NEW)
        assert answer.prompt_tokens() == 2
        assert answer.usage() == PromptUsage(2, 1)
        assert answer.tokens() == 5


@CHOICES
def test_a_body_reaches_the_client_byte_for_byte_without_the_ids(more: dict[str, Any]) -> None:
    asked = {"input": "hi", **more}
    bare = fake_responses.body(asked, "m", WORDS)
    answer = answer_to(more, streamed=False)
    assert answer.feed(fake_responses.told_body(asked, bare, WORDS)) == b""
    assert answer.finish() == fake_responses.dumped(bare)
    assert answer.token_ids() == (*b"hi", *NEW)
    assert answer.tokens() == 5


@pytest.mark.parametrize("streamed", [True, False])
def test_what_was_said_is_recorded_as_the_client_sends_it_back(streamed: bool) -> None:
    for more in ({}, CALL):
        answer = answer_to(more, streamed=streamed)
        final = fake_responses.body({"input": "hi", **more}, "m", WORDS)
        answer.feed(b"".join(events(more, told=True)) if streamed else fake_responses.dumped(final))
        answer.finish()
        text = "once upon \u00e9t\u00e9"
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": text}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]} if more else None
        assert answer.message() == (message or {"role": "assistant", "content": text})


@pytest.mark.parametrize("count", range(3, 9))
def test_a_stream_that_is_broken_off_has_what_was_said_until_then(count: int) -> None:
    for more in ({}, CALL):
        answer = answer_to(more, streamed=True)
        for event in events(more, told=True)[:count]:
            answer.feed(event)
        said = "".join(word for _, word in WORDS[: count - 2])
        message = answer.message()
        assert message is not None
        calls = message.get("tool_calls", [{"function": {"arguments": message["content"]}}])
        assert calls[0]["function"]["arguments"] == said
        assert answer.begun
        assert answer.ended == (count > 6)


def test_reasoning_and_text_of_one_response_are_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hm"}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
    later = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "B"}]}
    answer = answer_to({}, streamed=False)
    answer.feed(json.dumps({"id": "r", "output": [thought, message, later]}).encode())
    answer.finish()
    assert answer.message() == {"role": "assistant", "reasoning": "hm", "content": "AB"}


@pytest.mark.parametrize("streamed", [True, False])
def test_the_model_is_called_as_the_client_called_it(streamed: bool) -> None:
    sent = (
        b"".join(events({}, told=True))
        if streamed
        else fake_responses.dumped(fake_responses.body({}, "served", WORDS))
    )
    answer = answer_to({}, streamed=streamed, model="served")
    out = answer.feed(sent.replace(b'"model":"m"', b'"model":"served"')) + answer.finish()
    assert b'"model":"m"' in out
    assert b"served" not in out


@pytest.mark.parametrize(
    ("error", "reworded"),
    [
        (
            {"message": "This model's maximum context length is 9", "type": "BadRequestError", "code": 400},
            {"type": "invalid_request_error", "param": "input", "code": "context_length_exceeded"},
        ),
        (
            {"message": "no", "type": "NotFoundError", "param": "model", "code": 404},
            {"type": "invalid_request_error", "param": "model", "code": "model_not_found"},
        ),
        (
            {"message": "1 validation error", "type": "Bad Request", "param": "body.input", "code": 400},
            {"type": "invalid_request_error", "param": "input", "code": None},
        ),
        (
            {"message": "dead", "type": "InternalServerError", "param": None, "code": 500},
            {"type": "server_error", "param": None, "code": None},
        ),
    ],
)
def test_what_the_engine_refuses_is_refused_as_the_original_would(
    error: dict[str, Any], reworded: dict[str, Any]
) -> None:
    request = VllmWire().read("/v1/responses", b'{"input":"hi"}')
    answer = request.answer(status=error["code"], streamed=False, recorded=True)
    assert answer.feed(json.dumps({"error": error}).encode()) == b""
    assert json.loads(answer.finish())["error"] == {**error, **reworded}


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"detail":"Not Found"}'])
def test_a_refusal_in_no_known_words_passes_as_it_is(content: bytes) -> None:
    answer = VllmWire().read("/v1/responses", b"{}").answer(status=502, streamed=False, recorded=False)
    answer.feed(content)
    assert answer.finish() == content
