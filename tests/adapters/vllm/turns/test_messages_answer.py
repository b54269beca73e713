"""What of an answer of the Messages API is recorded, wherever its bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.vllm.turns.messages.request import MessagesRequest
from cwm.domain.messages import message_of
from cwm.ports.turn_wire import PromptUsage, TurnAnswer

USAGE = {
    "input_tokens": 3,
    "output_tokens": 4,
    "cache_creation_input_tokens": 1,
    "cache_read_input_tokens": 2,
}
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "so", "signature": "x"},
    {"type": "text", "text": "I look"},
    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1.0, "prompt_token_ids": [9]}},
    {"type": "text", "text": "again"},
]
BODY = {"id": "m", "type": "message", "role": "assistant", "content": CONTENT, "model": "m", "usage": USAGE}
DELTAS: dict[str, Any] = {
    "thinking": lambda block: [
        {"type": "thinking_delta", "thinking": block["thinking"]},
        {"type": "signature_delta", "signature": block["signature"]},
    ],
    "text": lambda block: [{"type": "text_delta", "text": letter} for letter in block["text"]],
    "tool_use": lambda block: [
        {"type": "input_json_delta", "partial_json": letter} for letter in json.dumps(block["input"])
    ],
}


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def stream(content: list[dict[str, Any]], *, stop: bool = True) -> list[bytes]:
    """The events of an answer, the last without its end if it is cut off."""
    events = [event("message_start", message={**BODY, "content": [], "usage": {"input_tokens": 6}})]
    empty: dict[str, dict[str, Any]] = {
        "text": {"text": ""},
        "thinking": {"thinking": ""},
        "tool_use": {"input": {}},
    }
    for index, block in enumerate(content):
        events.append(
            event("content_block_start", index=index, content_block={**block, **empty[block["type"]]})
        )
        events += [
            event("content_block_delta", index=index, delta=delta) for delta in DELTAS[block["type"]](block)
        ]
        events.append(event("content_block_stop", index=index))
    return (
        [*events, event("message_delta", delta={}, usage=USAGE), event("message_stop")]
        if stop
        else events[:-2]
    )


def told(events: list[bytes]) -> bytes:
    """The events as the middleware sends them: the ids 7 and 8 of the prompt, and one id for each event."""
    first, *rest = events
    ids = {"prompt_token_ids": [7, 8], "token_ids": [100]}
    comments = [b': cwm-token-ids {"token_ids":[%d]}\n\n' % number for number in range(101, 101 + len(rest))]
    later = b"".join(comment + each for comment, each in zip(comments, rest, strict=True))
    return b": cwm-token-ids " + json.dumps(ids, separators=(",", ":")).encode() + b"\n\n" + first + later


def answer(content: bytes, *, streamed: bool, cuts: list[int] | None = None) -> tuple[bytes, TurnAnswer]:
    """The bytes for the client, and the answer, of which the pieces between ``cuts`` arrived."""
    reader = MessagesRequest({}, b"{}", 10**6).answer(status=200, streamed=streamed, recorded=True)
    at = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts or ())})
    passed = [reader.feed(content[start:end]) for start, end in pairwise(at)]
    return b"".join((*passed, reader.finish())), reader


@given(st.lists(st.integers(0, 10**6), max_size=8))
def test_a_stream_is_read_wherever_it_is_cut(cuts: list[int]) -> None:
    events = stream(CONTENT)
    passed, reader = answer(told(events), streamed=True, cuts=cuts)
    assert passed == b"".join(events)
    assert reader.token_ids() == (7, 8, *range(100, 100 + len(events)))
    assert reader.prompt_tokens() == 2
    assert (reader.usage(), reader.tokens(), reader.ended) == (PromptUsage(6, 2), 10, True)


def test_an_answer_that_is_sent_back_is_the_one_that_was_recorded() -> None:
    sent_back = MessagesRequest(
        {"messages": [{"role": "assistant", "content": CONTENT}]}, b"{}", 1
    ).messages()
    body = json.dumps(BODY).encode()
    for content, streamed in ((told(stream(CONTENT)), True), (body, False)):
        _, reader = answer(content, streamed=streamed)
        message = reader.message()
        assert message is not None
        assert message_of(message).digest == sent_back[0].digest
        assert message["reasoning"] == "so"


@pytest.mark.parametrize("length", range(1, 8))
def test_a_tool_call_that_is_cut_short_keeps_what_there_is_of_its_arguments(length: int) -> None:
    events = stream([CONTENT[2]], stop=False)[: 2 + length]
    _, reader = answer(told(events), streamed=True)
    message = reader.message()
    assert message is not None
    (call,) = message["tool_calls"]
    assert call["function"]["arguments"] == json.dumps(CONTENT[2]["input"])[:length]
    assert not reader.ended


def test_the_arguments_of_a_streamed_call_are_as_the_model_wrote_them() -> None:
    written = '{"price":1.10, "many":1e3}'
    start = event("content_block_start", index=0, content_block={**CONTENT[2], "input": {}})
    delta = {"type": "input_json_delta", "partial_json": written}
    events = [*stream([])[:1], start, event("content_block_delta", index=0, delta=delta), *stream([])[1:]]
    _, reader = answer(told(events), streamed=True)
    message = reader.message()
    assert message is not None
    assert message["tool_calls"][0]["function"]["arguments"] == written


def test_ids_that_a_model_writes_are_none() -> None:
    body = json.dumps(BODY, separators=(",", ":")).encode()
    passed, reader = answer(body, streamed=False)
    assert (passed, reader.token_ids(), reader.prompt_tokens()) == (body, None, 0)
    ids = b'{"prompt_token_ids":[7,8],"token_ids":[9],'
    passed, reader = answer(ids + body[1:], streamed=False)
    assert (passed, reader.token_ids()) == (body, (7, 8, 9))


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b"{}", b'{"type":5}', b'{"type":"message","content":5,"usage":5}'],
)
def test_what_is_no_message_passes_and_says_nothing(content: bytes, *, streamed: bool) -> None:
    content = b"data: " + content + b"\n\n" if streamed else content
    passed, reader = answer(content, streamed=streamed)
    assert passed == content
    assert reader.token_ids() is None
    assert (reader.message() or {}).get("content", "") == ""
