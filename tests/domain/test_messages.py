"""Digests of messages and profiles, with what agents send."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import Brief, canonical_message, in_brief, message_of, plain_text, profile_of
from cwm.domain.turn import Profile

ANSWER = "Answer number 7: the sky is blue."
TEXT = {"type": "text", "text": "hi"}
MARK = {"cache_control": {"type": "ephemeral"}}
IMAGE: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"},
}
LARGE = "data:image/png;base64," + "A" * 5000


def sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


LARGE_DIGEST = sha256(LARGE)


def text_of(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(arguments: Any, content: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": "task", "arguments": arguments}
    return text_of(content, tool_calls=[{"id": "call_9", "type": "function", "function": function, **more}])


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def tool(name: str, description: str = "does it", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, **more}}


@pytest.mark.parametrize(
    ("once", "again"),
    [
        pytest.param(
            text_of(
                ANSWER, refusal=None, annotations=None, audio=None, function_call=None, reasoning="Think."
            ),
            text_of(ANSWER),
            id="an answer as the engine gives it, and as opencode sends it back",
        ),
        pytest.param(text_of(ANSWER, reasoning_content="Think."), text_of(ANSWER), id="reasoning"),
        pytest.param(text_of(ANSWER), text_of(f"\n{ANSWER}\n\n"), id="aider's history"),
        pytest.param(text_of(ANSWER), text_of([{"type": "text", "text": ANSWER}]), id="an answer in a part"),
        pytest.param(text_of(None), text_of(""), id="an empty answer"),
        pytest.param(
            call('{"prompt": "say hello", "count": 1.0}', index=0),
            call('{"count":1,"prompt":"say hello"}', ""),
            id="arguments that JavaScript parsed and serialised",
        ),
        pytest.param(call(""), call("{}"), id="a call without arguments"),
        pytest.param(call({"a": [1]}), call('{"a":[1]}'), id="arguments as an object"),
        pytest.param(user("hi"), user([TEXT]), id="Qwen's parts"),
        pytest.param(user("hi"), user([{**TEXT, **MARK}], **MARK), id="a mark on message and part"),
        pytest.param(user("hi"), user(["hi", {"type": "text", "text": ""}]), id="an empty part"),
        pytest.param(
            user([TEXT, IMAGE]),
            user(
                [{**TEXT, "prompt_cache_breakpoint": {"mode": "explicit"}}, {**IMAGE, **MARK, "uuid": None}]
            ),
            id="marks beside a picture",
        ),
        pytest.param(
            {"role": "system", "content": "Be kind."},
            {"content": "Be kind.", "role": "developer", "name": None},
            id="a developer's message",
        ),
    ],
)
def test_two_transmissions_of_a_message_have_one_digest(once: dict[str, Any], again: dict[str, Any]) -> None:
    assert message_of(once).digest == message_of(again).digest


def test_every_other_message_has_another_digest() -> None:
    detailed = {**IMAGE, "image_url": {**IMAGE["image_url"], "detail": "high"}}
    messages = [
        {},
        text_of("hi"),
        user("hi"),
        user("hi "),
        user("hi", name="ann"),
        user([TEXT, TEXT]),
        user([TEXT, IMAGE]),
        user([IMAGE, TEXT]),
        user([TEXT, detailed]),
        {"role": "tool", "content": "hi", "tool_call_id": "call_9"},
        {"role": "tool", "content": "hi", "tool_call_id": "call_8"},
        {"role": "prompt", "content": "hi"},
        call('{"a":1}'),
        call('{"a":2}'),
        call('{"a":1'),
        call('{"a":"1"}'),
        call('{"a":1.5}'),
        call('{"a":1}', id="call_8"),
        call('{"a":1}', function={"name": "other", "arguments": '{"a":1}'}),
    ]
    assert len({message_of(message).digest for message in messages}) == len(messages)


def test_a_digest_is_a_name_of_32_characters() -> None:
    assert len(message_of(user("hi")).digest) == 32


def test_a_message_is_stored_as_it_was_sent() -> None:
    content = {**call("{ }", reasoning="Think."), "refusal": None, **MARK}
    assert message_of(content).content == content
    assert message_of(user([{**TEXT, **MARK}, IMAGE])).content == user([{**TEXT, **MARK}, IMAGE])


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (
            {"type": "image_url", "image_url": {"url": LARGE, "detail": "low"}},
            {"type": "image_url", "image_url": {"url": LARGE_DIGEST, "detail": "low", "bytes": 5022}},
        ),
        (
            {"type": "input_image", "image_url": LARGE},
            {"type": "input_image", "image_url": LARGE_DIGEST, "bytes": 5022},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "A" * 5000, "format": "wav"}},
            {
                "type": "input_audio",
                "input_audio": {"data": sha256("A" * 5000), "format": "wav", "bytes": 5000},
            },
        ),
        (IMAGE, IMAGE),
        ({"type": "text", "text": LARGE}, {"type": "text", "text": LARGE}),
    ],
)
def test_a_large_medium_is_stored_as_its_digest_and_size(
    part: dict[str, Any], stored: dict[str, Any]
) -> None:
    message = message_of(user([TEXT, part]))
    assert message.content == user([TEXT, stored])
    assert message_of(message.content) == message


def test_another_large_medium_makes_another_message() -> None:
    one, other = (
        message_of(user([{"type": "image_url", "image_url": {"url": url}}])) for url in (LARGE, LARGE + "B")
    )
    assert one.digest != other.digest


FIELDS = st.sampled_from(
    ["role", "content", "name", "tool_calls", "tool_call_id", "type", "text", "id", "function", "arguments"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["assistant", "developer", "text", "1.0", '{"a": 1.0}', " hi "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(), inner, max_size=4),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}) | VALUES
CALLS = st.fixed_dictionaries(
    {"id": st.text(), "function": st.fixed_dictionaries({"name": st.text(), "arguments": VALUES})}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | VALUES},
    optional={
        "content": st.lists(PARTS, max_size=3) | VALUES,
        "tool_calls": st.lists(CALLS, max_size=2) | VALUES,
        "name": VALUES,
        "tool_call_id": VALUES,
    },
)


def in_other_order(value: Any, order: random.Random) -> Any:
    """The same JSON with the keys of its objects in another order."""
    if isinstance(value, list):
        return [in_other_order(item, order) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: in_other_order(value[name], order) for name in order.sample(sorted(value), len(value))}


@given(MESSAGES, st.randoms())
def test_the_order_of_keys_does_not_count(content: dict[str, Any], order: random.Random) -> None:
    assert message_of(in_other_order(content, order)).digest == message_of(content).digest


@given(MESSAGES)
def test_the_canonical_form_of_a_canonical_form_is_itself(content: dict[str, Any]) -> None:
    canonical = canonical_message(content)
    assert repr(canonical_message(canonical)) == repr(canonical)
    assert message_of(canonical).digest == message_of(content).digest


@pytest.mark.parametrize("text", ["\ud83d", "\x00"])
def test_text_that_no_database_takes_has_a_digest(text: str) -> None:
    content = json.loads(json.dumps({"role": "system", "content": text}))
    assert message_of(content).digest != message_of({"role": "system", "content": ""}).digest
    assert profile_of([content], None).system


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidParameterError, match="nested too deeply"):
        message_of(user(deep))
    with pytest.raises(InvalidParameterError, match="nested too deeply"):
        profile_of([], deep)
    nested_text = "[" * 200_000
    assert message_of(call(nested_text)).digest != message_of(call("[")).digest


MAIN = [{"role": "system", "content": "You are an agent."}, user("hi")]
TOOLS = [tool("bash"), tool("edit", parameters={"type": "object", "properties": {"path": {}}})]


def test_the_title_and_a_sub_agent_have_profiles_of_their_own() -> None:
    main = profile_of(MAIN, TOOLS)
    title = profile_of([{"role": "system", "content": "Generate a title."}, user("hi")], None)
    sub_agent = profile_of(MAIN, [*TOOLS, tool("task")])
    assert main.system not in {"", title.system}
    assert title.tools == ""
    assert sub_agent.system == main.system
    assert sub_agent.tools not in {"", main.tools}
    assert profile_of(MAIN, [tool("bash", "does more"), TOOLS[1]]).tools != main.tools


def test_a_profile_is_that_of_the_next_turn() -> None:
    later = [*MAIN, text_of(ANSWER), {"role": "system", "content": "A reminder."}, user("and tomorrow?")]
    assert profile_of(later, TOOLS) == profile_of(MAIN, TOOLS)


def test_a_profile_depends_on_text_and_not_on_form() -> None:
    parts = [
        {"role": "developer", "content": [{"type": "text", "text": "You are an agent.", **MARK}]},
        MAIN[1],
    ]
    marked = [
        {**TOOLS[1], **MARK},
        {"function": {**TOOLS[0]["function"], "strict": None}, "type": "function"},
    ]
    assert profile_of(parts, marked) == profile_of(MAIN, TOOLS[::-1])


def test_the_order_of_tools_is_no_matter_of_the_agent() -> None:
    profile, reordered = profile_of(MAIN, TOOLS), profile_of(MAIN, TOOLS[::-1])
    assert profile.agent == reordered.agent
    assert profile.tool_order != reordered.tool_order
    assert profile.tool_order == profile_of(MAIN, TOOLS).tool_order != ""


@pytest.mark.parametrize("tools", [None, [], {}, "bash"])
def test_a_request_with_neither_system_text_nor_tools_has_an_empty_profile(tools: Any) -> None:
    assert profile_of([user("hi")], tools) == Profile()
    assert profile_of([], tools) == Profile()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"role": "user", "content": "One?"}, "One?"),
        ({"role": "user", "content": [{"type": "text", "text": "One?"}, {"type": "image_url"}]}, "One?"),
        ({"role": "assistant", "content": None, "tool_calls": 5}, ""),
        (
            {"role": "assistant", "content": "So:", "tool_calls": [{"function": {"name": "ls"}}]},
            'So:\n{"function":{"name":"ls"}}',
        ),
    ],
)
def test_what_a_message_says_is_its_text_and_its_calls(content: dict[str, Any], text: str) -> None:
    assert plain_text(content) == text


@pytest.mark.parametrize(
    ("content", "brief"),
    [
        ({"role": "user", "content": "  Fix\n\tthe test. "}, Brief("user", "Fix the test.")),
        (
            {"role": "user", "content": [TEXT, {"type": "text", "text": "<system-reminder>date</system-reminder>"}]},
            Brief("user", "hi"),
        ),
        ({"role": "user", "content": "x" * 200}, Brief("user", "x" * 160 + "…")),
        ({"role": "assistant", "content": None}, Brief("assistant", "")),
        ({}, Brief()),
    ],
)  # fmt: skip
def test_a_message_in_brief_is_its_last_words_in_one_line(content: dict[str, Any], brief: Brief) -> None:
    assert in_brief(content) == brief
