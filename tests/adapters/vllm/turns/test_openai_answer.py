"""Reading ids out of answers, and taking them out again."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.vllm.turns.answers import renaming
from cwm.adapters.vllm.turns.openai.answer import BodyAnswer, StreamAnswer
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of
from cwm.ports.turn_wire import PromptUsage

FIRST = {
    "id": "chatcmpl-1",
    "choices": [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ],
    "prompt_token_ids": [5, 6, 7],
    "prompt_text": None,
}
TEXT = 'says "token_ids":[1,2] and \\"prompt_token_ids\\":[3]'


def event(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "logprobs": None, **choice}], **more}


def sse(*events: dict[str, Any] | str) -> bytes:
    return b"".join(
        b"data: "
        + (e if isinstance(e, str) else json.dumps(e, ensure_ascii=False, separators=(",", ":"))).encode()
        + b"\n\n"
        for e in events
    )


def word(text: str, ids: list[int] | None, finish: str | None = None) -> dict[str, Any]:
    return event({"delta": {"content": text}, "finish_reason": finish, "token_ids": ids})


STREAM = sse(FIRST, word("été", [8]), word(TEXT, [9, 10]), word("", [11], "stop"), "[DONE]")
BARE = sse(
    {**FIRST, "prompt_token_ids": None}, word("été", None), word(TEXT, None), word("", None, "stop"), "[DONE]"
)


def read(answer: StreamAnswer | BodyAnswer, content: bytes, *cuts: int) -> bytes:
    edges = [0, *sorted(cuts), len(content)]
    out = b"".join(answer.feed(content[a:b]) for a, b in itertools.pairwise(edges))
    return out + answer.finish()


@pytest.mark.parametrize("recorded", [True, False])
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_a_model_is_named_as_the_client_names_it_and_never_inside_a_text(
    recorded: bool, cuts: list[int]
) -> None:
    says = word('writes {"model":"llama"}', None, "stop")
    stream, renamed = (sse({**says, "model": name}, says, "[DONE]") for name in ("llama", "claude-4"))
    answer = StreamAnswer(recorded=recorded, hide_ids=False, named=renaming("llama", "claude-4"))
    assert read(answer, stream, *(min(cut, len(stream)) for cut in cuts)) == renamed


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_bytes_and_ids(cuts: list[int]) -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    assert read(answer, STREAM, *cuts) == BARE
    assert answer.token_ids() == (5, 6, 7, 8, 9, 10, 11)
    assert answer.ended


@given(content=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_bytes_that_are_no_events_pass_unchanged(content: bytes, cuts: list[int]) -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    assert read(answer, content, *(min(c, len(content)) for c in cuts)) == content


@given(text=st.text(), ids=st.lists(st.integers(0, 2**31), max_size=20))
def test_taking_ids_out_of_a_body_leaves_every_text_as_it_was(text: str, ids: list[int]) -> None:
    def body(told: list[int] | None) -> bytes:
        choice = {"index": 0, "text": text, "token_ids": told, "prompt_token_ids": told}
        return json.dumps({"choices": [choice], text: text}, ensure_ascii=False).encode(errors="replace")

    answer = BodyAnswer(hide_ids=True)
    assert read(answer, body(ids)) == body(None)


def test_half_an_event_is_held_back_and_a_whole_one_is_not() -> None:
    answer = StreamAnswer(recorded=False, hide_ids=False)
    whole = sse(word("once", None))
    assert answer.feed(whole[:-1]) == b""
    assert not answer.begun
    assert answer.feed(whole[-1:]) == whole
    assert answer.begun


def test_a_recorded_answer_begins_with_its_first_token_and_not_with_its_role() -> None:
    answer = StreamAnswer(recorded=True, hide_ids=False)
    answer.feed(sse(FIRST))
    assert not answer.begun
    generated = {"index": 0, "delta": {"content": "a"}, "finish_reason": None, "token_ids": [7]}
    answer.feed(sse({**FIRST, "choices": [generated]}))
    assert answer.begun


def test_a_comment_before_the_first_token_does_not_count_as_a_beginning() -> None:
    answer = StreamAnswer(recorded=False, hide_ids=False)
    assert answer.feed(b": waiting\n\n") == b": waiting\n\n"
    assert not answer.begun


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_events_may_end_in_any_line_ending(end: bytes) -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    content = STREAM.replace(b"\n\n", end)
    assert read(answer, content) == BARE.replace(b"\n\n", end)
    assert answer.token_ids() == (5, 6, 7, 8, 9, 10, 11)


def test_ids_the_client_asked_for_stay() -> None:
    answer = StreamAnswer(recorded=True, hide_ids=False)
    assert read(answer, STREAM) == STREAM
    assert answer.token_ids() == (5, 6, 7, 8, 9, 10, 11)


def test_an_event_sent_only_for_its_ids_is_not_shown_but_its_ids_count() -> None:
    kept = event({"delta": {}, "finish_reason": None, "token_ids": [20, 21]})
    answer = StreamAnswer(recorded=True, hide_ids=True)
    assert read(answer, sse(FIRST, kept)) == sse({**FIRST, "prompt_token_ids": None})
    assert answer.token_ids() == (5, 6, 7, 20, 21)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {}, "finish_reason": "stop", "token_ids": [1]},
        {"delta": {}, "finish_reason": None, "token_ids": [1], "logprobs": {"content": []}},
        {"delta": {"content": None}, "finish_reason": None, "token_ids": [1]},
    ],
)
def test_an_event_that_says_anything_else_is_shown(choice: dict[str, Any]) -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    assert read(answer, sse(event(choice))) == sse(event({**choice, "token_ids": None}))


def test_hidden_ids_make_the_sequence_unknown() -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    read(answer, sse(FIRST, word("a", [1]), word("b", None), "[DONE]"))
    assert answer.token_ids() is None


def test_choice_zero_is_the_session_where_there_are_several() -> None:
    body = {
        "prompt_token_ids": [1, 2],
        "choices": [{"index": 1, "token_ids": [9]}, {"index": 0, "token_ids": [3, 4]}],
    }
    answer = BodyAnswer(hide_ids=False)
    read(answer, json.dumps(body).encode())
    assert answer.token_ids() == (1, 2, 3, 4)


def test_usage_is_read_where_the_engine_tells_it() -> None:
    answer = StreamAnswer(recorded=False, hide_ids=False)
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    read(answer, sse(word("a", None), {"choices": [], "usage": usage}, "[DONE]"))
    assert answer.usage() == PromptUsage(prompt_tokens=9, cached_tokens=4)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'{"choices":5}', b'{"choices":[1,{"index":0}],"usage":3}', b"\xff"]
)
def test_a_body_that_is_no_answer_passes_and_tells_nothing(content: bytes) -> None:
    answer = BodyAnswer(hide_ids=True)
    assert read(answer, content) == content
    assert answer.token_ids() is None
    assert answer.usage() is None


def large(*, ids: bool) -> bytes:
    """An answer of three choices, with much text that quotes what is looked for."""
    quoted = '"token_ids":[9],"usage":{"prompt_tokens":9}' * 20_000
    choices = [
        {"index": number, "text": quoted, "token_ids": [10 * number, 10 * number + 1] if ids else None}
        for number in range(3)
    ]
    choices[0]["prompt_token_ids"] = [1, 2, 3] if ids else None
    usage = {"prompt_tokens": 3, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2}}
    return json.dumps({"choices": choices, "usage": usage, "metrics": None}).encode()


@pytest.mark.parametrize("piece", [10_000, 10_000_000])
def test_a_large_body_tells_its_ids_without_being_parsed_whole(piece: int) -> None:
    answer, content = BodyAnswer(hide_ids=True), large(ids=True)
    for start in range(0, len(content), piece):
        assert answer.feed(content[start : start + piece]) == b""
    assert json.loads(answer.finish()) == json.loads(large(ids=False))
    assert answer.token_ids() == (1, 2, 3, 0, 1)
    assert answer.usage() == PromptUsage(3, 2)
    assert answer.tokens() == 9


def test_a_large_body_that_nobody_records_is_passed_on_as_it_arrives() -> None:
    answer, content = BodyAnswer(hide_ids=False, recorded=False), large(ids=False)
    held, passed = 0, b""
    for start in range(0, len(content), 10_000):
        passed += answer.feed(content[start : start + 10_000])
        held = max(held, start + 10_000 - len(passed))
    assert passed + answer.finish() == content
    assert held < 300_000
    assert (answer.usage(), answer.tokens()) == (PromptUsage(3, 2), 9)


def test_a_recorded_body_over_the_limit_is_refused_with_what_to_ask_for() -> None:
    answer = BodyAnswer(hide_ids=True, max_bytes=1_000_000)
    answer.feed(b" " * 1_000_000)
    with pytest.raises(InvalidParameterError, match=r"more than 1000000 bytes\. Ask for less \(n, logprobs"):
        answer.feed(b" ")


def delta(ids: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    return event({"delta": fields, "finish_reason": None, "token_ids": ids or [1]})


def part_of_call(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    """A delta of a tool call as vLLM streams it: the first of each call has its id and name."""
    function = {"arguments": arguments, **({"name": first.pop("name")} if first else {})}
    return delta(tool_calls=[{"index": index, "function": function, **first}])


CALLS: list[dict[str, Any]] = [
    {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "glob", "arguments": ""}},
]
CALL_STREAM = sse(
    FIRST,
    delta(reasoning="Two "),
    delta(reasoning="calls."),
    delta(content="I look."),
    part_of_call(0, "", id="call_1", type="function", name="read"),
    part_of_call(0, '{"path": '),
    part_of_call(1, "", id="call_2", type="function", name="glob"),
    part_of_call(0, '"a.py"}'),
    event({"delta": {"content": ""}, "finish_reason": "tool_calls", "token_ids": [2]}),
    {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 3, "total_tokens": 9}},
    "[DONE]",
)


@given(cuts=st.lists(st.integers(0, len(CALL_STREAM)), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_message(cuts: list[int]) -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    read(answer, CALL_STREAM, *cuts)
    assert answer.message() == {
        "role": "assistant",
        "content": "I look.",
        "reasoning": "Two calls.",
        "tool_calls": CALLS,
    }


def body(message: dict[str, Any], ids: list[int] | None = None) -> bytes:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "token_ids": [8, 9]}
    return json.dumps({"choices": [choice], "prompt_token_ids": ids or [5, 6, 7]}).encode()


REPLY = {"role": "assistant", "content": "hi", "refusal": None, "annotations": None, "audio": None}


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        ({**REPLY, "function_call": None, "reasoning": None}, {"role": "assistant", "content": "hi"}),
        ({**REPLY, "content": None}, {"role": "assistant", "content": ""}),
        ({**REPLY, "tool_calls": CALLS}, {"role": "assistant", "content": "hi", "tool_calls": CALLS}),
        (
            {**REPLY, "reasoning": "Think.", "reasoning_content": "Think."},
            {"role": "assistant", "content": "hi", "reasoning": "Think."},
        ),
        ({**REPLY, "reasoning_content": "Th"}, {"role": "assistant", "content": "hi", "reasoning": "Th"}),
    ],
)
def test_a_body_gives_its_message_without_what_is_null(
    engines: dict[str, Any], message: dict[str, Any]
) -> None:
    answer = BodyAnswer(hide_ids=True)
    read(answer, body(engines))
    assert answer.message() == message


def test_what_a_client_sends_back_has_the_digest_of_what_it_got() -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    read(answer, CALL_STREAM)
    arguments = ['{"path":"a.py"}', "{}"]
    calls = [
        {**call, "function": {**call["function"], "arguments": text}}
        for call, text in zip(CALLS, arguments, strict=True)
    ]
    next_turns = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    message = answer.message()
    assert message is not None
    assert message_of(message).digest == message_of(next_turns).digest


def test_a_completion_gives_its_text_streamed_or_whole() -> None:
    pieces = [event({"text": text, "token_ids": [1], "finish_reason": None}) for text in ("Once ", "more")]
    pieces[0]["choices"][0]["prompt_token_ids"] = [5]
    stream, whole = StreamAnswer(recorded=True, hide_ids=True), BodyAnswer(hide_ids=True)
    read(stream, sse(*pieces, "[DONE]"))
    choice = {"index": 0, "text": "Once more", "token_ids": [1, 1], "prompt_token_ids": [5]}
    read(whole, json.dumps({"choices": [choice]}).encode())
    assert stream.message() == whole.message() == {"role": "completion", "content": "Once more"}


def test_a_stream_that_breaks_off_gives_the_message_so_far() -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    answer.feed(sse(FIRST))
    assert answer.message() is None
    answer.feed(sse(word("He", [8]), word("llo", [9])) + b'data: {"choices":[{"index":0,"delta":{"con')
    assert answer.message() == {"role": "assistant", "content": "Hello"}


def test_an_answer_that_ends_at_once_gives_an_empty_message() -> None:
    answer = StreamAnswer(recorded=True, hide_ids=True)
    read(answer, sse(FIRST, word("", [2], "stop"), "[DONE]"))
    assert answer.message() == {"role": "assistant", "content": ""}


def test_of_several_choices_the_first_gives_the_message() -> None:
    choices = [
        {"index": index, "delta": {"content": text}, "token_ids": [1]} for index, text in ((1, "b"), (0, "a"))
    ]
    answer = StreamAnswer(recorded=True, hide_ids=True)
    read(answer, sse({"choices": choices}))
    assert answer.message() == {"role": "assistant", "content": "a"}


def test_an_answer_that_is_not_recorded_gives_no_message() -> None:
    content = body(REPLY)
    whole, stream = (
        BodyAnswer(hide_ids=False, recorded=False),
        StreamAnswer(recorded=False, hide_ids=False),
    )
    assert (read(whole, content), read(stream, CALL_STREAM)) == (content, CALL_STREAM)
    assert (whole.message(), stream.message()) == (None, None)


def test_a_long_prompt_does_not_hide_the_message() -> None:
    answer = BodyAnswer(hide_ids=True)
    read(answer, body(REPLY, list(range(100_000))))
    assert answer.message() == {"role": "assistant", "content": "hi"}
    assert answer.token_ids() == (*range(100_000), 8, 9)


def test_a_long_body_gives_no_message() -> None:
    answer = BodyAnswer(hide_ids=True)
    read(answer, large(ids=True))
    assert answer.token_ids() is not None
    assert answer.message() is None


strange = st.recursive(
    st.none() | st.integers(0, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["index", "function", "id", "name", "arguments", "content"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(fields=st.dictionaries(st.sampled_from(["content", "reasoning", "tool_calls", "role"]), strange))
def test_a_strange_delta_passes_unchanged(fields: dict[str, Any]) -> None:
    odd = event({"delta": fields, "finish_reason": "stop", "token_ids": [1]})
    answer = StreamAnswer(recorded=True, hide_ids=False)
    assert read(answer, sse(odd)) == sse(odd)
    assert answer.message() is not None


COUNTED = {"usage": {"prompt_tokens": 3, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}}


@given(cuts=st.lists(st.integers(0, 600), max_size=12))
def test_a_usage_that_the_client_did_not_ask_for_is_read_and_hidden(cuts: list[int]) -> None:
    last = {"id": "chatcmpl-1", "choices": [], **COUNTED, "system_fingerprint": "vllm-é"}
    stream = sse(FIRST, word(TEXT, [8, 9, 10]), word("", [11], "stop"), last, "[DONE]")
    end = {**word("", None, "stop"), "system_fingerprint": "vllm-é"}
    bare = sse({**FIRST, "prompt_token_ids": None}, word(TEXT, None), end, "[DONE]")
    answer = StreamAnswer(recorded=True, hide_ids=True, hide_usage=True)
    assert read(answer, stream, *(min(cut, len(stream)) for cut in cuts)) == bare
    assert answer.usage() == PromptUsage(3, 2)
    assert answer.token_ids() == (5, 6, 7, 8, 9, 10, 11)


def test_a_usage_that_the_engine_tells_everybody_is_passed_on() -> None:
    end = {**word("", [11], "stop"), **COUNTED}
    stream = sse(FIRST, end, {"id": "chatcmpl-1", "choices": [], **COUNTED}, "[DONE]")
    answer = StreamAnswer(recorded=True, hide_ids=False, hide_usage=True)
    assert read(answer, stream) == stream


@pytest.mark.parametrize(
    "rest", [b"", sse("[DONE]"), sse({"error": {"message": "The engine died.", "code": 500}})]
)
def test_the_last_event_of_a_stream_without_its_usage_is_not_lost(rest: bytes) -> None:
    answer = StreamAnswer(recorded=True, hide_ids=False, hide_usage=True)
    stream = sse(FIRST, word("", [11], "stop"))
    assert read(answer, stream + rest) + answer.failed == stream + rest
