"""Requests to Anthropic's Messages API: those of real clients, what is refused, and the chat that they are recorded as."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.turns.messages.request import MessagesRequest
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal

ANN = Principal("acme", "ann")

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
SAMPLES = Path(__file__).parent / "samples"
TOOL = {"name": "look", "input_schema": {"type": "object"}}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
INSIDE = {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/a.png"}}


def sample(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text())
    return loaded


def read(path: str = MESSAGES, /, **fields: Any) -> MessagesRequest:
    return replayed({"path": path, "headers": {}, "body": fields})


def replayed(recorded: dict[str, Any]) -> MessagesRequest:
    body = json.dumps(recorded["body"]).encode()
    request = VllmWire().read(recorded["path"], body, recorded["headers"])
    assert isinstance(request, MessagesRequest)
    return request


def said(**fields: Any) -> list[dict[str, Any]]:
    return [message.content for message in read(**fields).messages()]


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


@pytest.mark.parametrize(
    "name", [*sorted(path.stem for path in SAMPLES.glob("claude*")), "langchain_anthropic_turn2"]
)
def test_a_request_of_a_real_client_arrives_as_it_was_sent(name: str) -> None:
    recorded = sample(name)
    request = replayed(recorded)
    sent = json.loads(request.body("salt", weights="w-1", recorded=True))
    assert sent == {
        **recorded["body"],
        "cache_salt": "salt",
        "kv_transfer_params": {"cwm.weights": "w-1"},
    }
    assert request.operation == "chat"
    assert request.engine_headers(recorded=True) == {"cwm-token-ids": "1"}
    assert request.engine_headers(recorded=False) == {}
    assert not any("x-anthropic-billing-header" in str(each.content) for each in request.messages())


def test_the_second_request_of_a_client_extends_the_first() -> None:
    first, second = (replayed(sample(f"claude_code_turn{number}")) for number in (1, 2))
    digests = [message.digest for message in second.messages()]
    assert digests[: len(first.messages())] == [message.digest for message in first.messages()]
    assert [message.content["role"] for message in second.messages()] == [
        "system",
        "user",
        "system",
        "assistant",
        "user",
    ]
    assert first.profile() == second.profile()


def test_tools_are_called_and_answered_as_in_a_chat() -> None:
    called, answered = replayed(sample("claude_code_tool_result")).messages()[-2:]
    assert called.content["tool_calls"] == [
        {
            "id": "toolu_76",
            "type": "function",
            "function": {"name": "Bash", "arguments": '{"command": "echo 42", "description": "echo"}'},
        }
    ]
    assert answered.content == {"role": "tool", "tool_call_id": "toolu_76", "content": "42"}


def test_what_a_title_request_says_has_another_profile() -> None:
    assert replayed(sample("claude_code_title")).profile() != replayed(sample("claude_code_turn1")).profile()


def test_every_kind_of_block_is_recorded_in_the_order_in_which_it_is_rendered() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1"}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    assert said(
        system=[text("x-anthropic-billing-header: 1"), text("Be"), text(" kind.")],
        messages=[
            user(text("look"), {"type": "image", "source": PIXEL}),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    text("I look."),
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 1}},
                ],
            },
            user(
                text("well?"),
                {**result, "content": [text("a"), text("b"), {"type": "image", "source": PIXEL}]},
            ),
            user({**result, "content": [{"type": "tool_reference", "tool_name": "see"}]}),
            {"role": "system", "content": "x-anthropic-billing-header: 2"},
            {"role": "system", "content": [text("x-anthropic-billing-header: 2"), text("Hurry.")]},
            {"role": "assistant", "content": "Yes."},
        ],
    ) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [text("look"), picture]},
        {
            "role": "assistant",
            "reasoning": "so",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
            ],
            "content": "I look.",
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
        {"role": "user", "content": [picture]},
        {"role": "user", "content": "well?"},
        {"role": "tool", "tool_call_id": "t1", "content": ""},
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "tool_reference", "name": "see"}]},
        {"role": "system", "content": "Hurry."},
        {"role": "assistant", "content": "Yes."},
    ]


def test_where_a_cache_should_break_is_no_part_of_what_is_said() -> None:
    plain, marked = (
        read(messages=[user(text("hi", **more))]).messages()
        for more in ({}, {"cache_control": {"type": "ephemeral"}})
    )
    assert [each.digest for each in plain] == [each.digest for each in marked]


@pytest.mark.parametrize("content", [5, None, [5, {}, {"type": 7}, {"type": "text"}], {"a": 1}])
def test_odd_messages_are_for_the_engine_to_refuse(content: Any) -> None:
    for role in ("user", "assistant", "system", 5):
        request = read(messages=[{"role": role, "content": content}, 7], system=[5], tools=[7, {"name": 5}])
        request.messages()
        request.profile()
        list(request.texts())
    for odd in ("text", 5, {"role": "user"}):
        assert (
            read(messages=odd, tools=odd, thinking=odd, output_config=odd, tool_choice=odd).messages() == ()
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers: Extra inputs"),
        ({"container": "c1"}, "container: Extra inputs are not permitted"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "context_management: Extra inputs",
        ),
        ({"priority": 1}, "priority: Extra inputs are not permitted"),
        (
            {"tools": [TOOL, {"type": "web_search_20250305", "name": "s"}]},
            "tools.1: Input tag 'web_search_20250305'",
        ),
        (
            {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
            "messages.0.content.0.image.source: Input tag 'file' .* 'base64', 'url'",
        ),
        (
            {"messages": [user(5, {"type": "tool_result", "content": [text("a"), {"type": "document"}]})]},
            "messages.0.content.1.tool_result.content.1: Input tag 'document'",
        ),
    ],
)
def test_what_would_be_left_undone_is_refused_in_the_words_of_the_api(
    fields: dict[str, Any], message: str
) -> None:
    for path in (MESSAGES, COUNT):
        with pytest.raises(InvalidParameterError, match=message):
            read(path, **fields)


@pytest.mark.parametrize("name", ["cache_salt", "kv_transfer_params"])
def test_what_the_gateway_sets_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="set by the gateway"):
        read(**{name: None})


def test_fields_that_ask_for_nothing_pass() -> None:
    clearing = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    read(mcp_servers=[], container=None, service_tier="auto", speed="fast", context_management=clearing)


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": {"pattern": "(a{1,90}){1,90}"}}}},
        {"tools": [{**TOOL, "strict": True, "input_schema": {"pattern": "(a{1,90}){1,90}"}}]},
        {
            "messages": [
                {
                    "role": "system",
                    "content": [
                        {
                            "type": "tool_addition",
                            "tool": {
                                "type": "tool_definition",
                                "definition": {**TOOL, "input_schema": {"pattern": "(a{1,90}){1,90}"}},
                            },
                        }
                    ],
                }
            ],
            "tool_choice": {"type": "any"},
        },
    ],
)
def test_a_schema_that_takes_long_to_compile_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="repetitions in its patterns"):
        read(**fields)


@pytest.mark.parametrize(
    ("choice", "strict", "refused"),
    [
        (None, 0, False),
        (None, 1, False),
        (None, 2, True),
        ({"type": "auto"}, 1, False),
        ({"type": "tool", "name": "t1"}, 1, False),
        ({"type": "any"}, 0, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, 0, False),
    ],
)
def test_tools_count_together_where_an_answer_is_constrained_to_a_call_of_any_of_them(
    choice: dict[str, Any] | None, strict: int, *, refused: bool
) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {} for number in range(600)}}
    tools = [{"name": f"t{number}", "input_schema": schema, "strict": number < strict} for number in range(3)]
    with pytest.raises(InvalidParameterError, match="too many properties") if refused else nullcontext():
        read(model="m", tools=tools, tool_choice=choice)


@pytest.mark.parametrize(
    "content", [[INSIDE], [{"type": "tool_result", "tool_use_id": "t1", "content": [INSIDE]}]]
)
async def test_media_inside_the_network_are_refused_wherever_they_are(content: list[Any]) -> None:
    request = read(messages=[user(*content)])
    with pytest.raises(InvalidParameterError, match="not public"):
        await request.require_media(ANN)
    assert MediaRule() == request.media


def test_texts_are_those_of_every_place_and_no_media() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": ["deep"]}}
    messages = [
        user(text("one"), {"type": "tool_result", "content": [text("two")]}),
        {"role": "assistant", "content": [call]},
    ]
    texts = set(read(system="zero", messages=[*messages, user({"type": "image", "source": PIXEL})]).texts())
    assert {"zero", "one", "two", "deep"} <= texts
    assert "iVBO" not in texts


def test_an_answer_is_as_long_as_the_model_takes_and_its_thoughts_are_shorter() -> None:
    request = read(model="m", max_tokens=32000, thinking={"type": "enabled", "budget_tokens": 31999})
    sent = json.loads(request.addressed_to("m", 8192).body("s", weights="", recorded=True))
    assert (sent["max_tokens"], sent["thinking"]) == (8192, {"type": "enabled", "budget_tokens": 8191})
    assert request.addressed_to("m", 8192).capped == 8192
    sent = json.loads(request.addressed_to("m", 64000).body("s", weights="", recorded=True))
    assert (sent["max_tokens"], sent["thinking"]["budget_tokens"]) == (32000, 31999)


def test_a_count_needs_no_salt_and_is_sent_as_it_came() -> None:
    raw = b'{ "model": "claude-x", "messages": [] }'
    request = VllmWire().read(COUNT, raw)
    assert request.body("salt", weights="w", recorded=False) == raw
    assert request.operation is None
    sent = json.loads(request.addressed_to("served", 10).body("salt", weights="w", recorded=False))
    assert sent == {"model": "served", "messages": []}


def test_new_messages_continue_a_context_if_they_are_text() -> None:
    request = read(messages=[user(text("on"))], tools=[TOOL], chat_template_kwargs={"a": 1})
    request.require_continuable()
    function = {"name": "look", "parameters": {"type": "object"}}
    assert request.template_options() == {
        "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": {"a": 1},
    }
    for messages in ([], [user({"type": "image", "source": PIXEL})]):
        with pytest.raises(InvalidParameterError, match="at least one message, of text only"):
            read(messages=messages).require_continuable()


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    deep: Any = "x"
    for _ in range(3000):
        deep = [deep]
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": deep}}
    request = MessagesRequest({"messages": [{"role": "assistant", "content": [call]}]}, b"{}", 1)
    with pytest.raises(InvalidParameterError, match="nested too deeply"):
        request.messages()
