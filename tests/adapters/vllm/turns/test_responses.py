"""A request of the Responses API: what is read, refused, added and recorded of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.turns.responses.request import ResponsesRequest
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.constraints import SchemaLimits
from cwm.domain.conversation import chains
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of
from cwm.domain.principal import Principal

ANN = Principal("acme", "ann")

PATH = "/v1/responses"
SAMPLES = Path(__file__).parent / "samples"
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "input_image", "image_url": "http://10.0.0.1/cat.png"}


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


def read(wire: VllmWire | None = None, **fields: Any) -> ResponsesRequest:
    request = (wire or VllmWire()).read(PATH, json.dumps(fields).encode())
    assert isinstance(request, ResponsesRequest)
    return request


def said(**fields: Any) -> list[dict[str, Any]]:
    return [message.content for message in read(**fields).messages()]


def sample(name: str) -> ResponsesRequest:
    recorded = json.loads((SAMPLES / f"{name}.json").read_text())
    request = VllmWire().read(PATH, json.dumps(recorded["body"]).encode(), recorded["headers"])
    assert isinstance(request, ResponsesRequest)
    return request


@pytest.mark.parametrize(
    "name", ["codex_turn1", "codex_turn2", "openai_agents_responses_turn2", "pydantic_ai_responses_turn2"]
)
def test_what_real_clients_send_is_sent_on_as_it_is_with_our_fields_behind_it(name: str) -> None:
    request = sample(name)
    request.require_recordable()
    sent = request.body("salt", weights="", recorded=True)
    assert sent.startswith(request.raw[:-1])
    ours = {"cache_salt": "salt", "request_id": request.response_id, "store": False}
    assert json.loads(sent) == {**request.fields, **ours}
    assert request.engine_headers(recorded=True) == {"cwm-token-ids": "1"}
    assert request.generation_ids("x") == (f"{request.response_id}_0",)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"type": "message", "id": "msg_1", "status": "completed", "content": [part("a"), part("b")]}, "ab"),
        ({"content": [part("a")]}, "a"),
        ({"content": [part("a"), part("b"), part("c")]}, "abc"),
    ],
)
def test_an_earlier_answer_reaches_the_model_whole(answer: dict[str, Any], text: str) -> None:
    items = [USER, {"role": "assistant", **answer}, USER]
    sent = json.loads(read(input=items).body("salt", weights="", recorded=True))["input"]
    assert sent == [USER, {"type": "message", "role": "assistant", "content": text}, USER]
    assert said(input=items)[1] == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "content", ["text", [], [part("a")], [part("a"), {"type": "refusal", "refusal": "no"}], [{"type": "odd"}]]
)
def test_an_earlier_answer_that_vllm_takes_or_that_is_more_than_text_is_sent_as_it_is(content: Any) -> None:
    items = [{"type": "message", "role": "assistant", "content": content}, USER]
    request = read(input=items)
    assert request.body("salt", weights="", recorded=True).startswith(request.raw[:-1])


def test_a_stream_that_was_cut_off_ends_as_at_openai() -> None:
    reading = read(input="hi").answer(status=200, streamed=True, recorded=False)
    item = {"type": "message", "role": "assistant", "status": "completed", "content": [part("once")]}
    response = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [item],
    }
    event = {"type": "response.completed", "sequence_number": 3, "response": response}
    (name, data, *_) = reading.feed(
        f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()
    ).splitlines()
    assert name == b"event: response.incomplete"
    cut = json.loads(data.removeprefix(b"data: "))
    assert (cut["type"], cut["response"]["output"][0]["status"]) == ("response.incomplete", "incomplete")
    assert reading.ended


def test_the_next_request_of_codex_says_what_the_last_one_said_its_answer_and_more() -> None:
    first, second = sample("codex_turn1"), sample("codex_turn2")
    answer = message_of({"role": "assistant", "content": "Answer number 4: the sky is blue."})
    carried = chains([*first.messages(), answer])
    assert chains(second.messages())[: len(carried)] == carried
    assert second.profile() == first.profile()


@pytest.mark.parametrize("name", ["openai_agents_responses_turn2", "pydantic_ai_responses_turn2"])
def test_instructions_and_a_system_message_say_the_same(name: str) -> None:
    roles = [message.content["role"] for message in sample(name).messages()]
    assert roles == ["system", "user", "assistant", "user"]
    assert sample(name).messages()[0] == message_of({"role": "system", "content": "Be kind."})


def test_items_become_the_messages_that_vllm_makes_of_them() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "namespace": "web", "arguments": "{}"}
    patch = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "a\nb"}
    assert said(
        instructions="Be kind.",
        input=[
            {**USER, "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let us."}]},
            call,
            patch,
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "1"}],
            },
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"role": "assistant", "content": "A"},
            {"role": "assistant", "content": "B"},
        ],
    ) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "Let us.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "web__look", "arguments": "{}"}},
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "patch", "arguments": '{"input": "a\\nb"}'},
                },
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c1"},
        {"role": "tool", "content": "done", "tool_call_id": "c2"},
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
    ]


def test_an_input_that_is_a_text_is_one_message_of_the_user() -> None:
    assert said(input="hi") == [USER]
    assert list(read(input="hi", instructions="Be kind.").texts()) == ["Be kind.", "hi"]


def test_an_image_is_recorded_as_a_chat_would_have_it() -> None:
    inline = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    image = {"url": "data:image/png;base64,AA", "detail": "low"}
    assert said(input=[{"role": "user", "content": [inline]}])[0]["content"] == [
        {"type": "image_url", "image_url": image}
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [IMAGE]},
        {"type": "function_call_output", "call_id": "c", "output": [IMAGE]},
        {"type": "computer_call_output", "call_id": "c", "output": IMAGE},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]},
        {"role": "user", "content": [{"type": "input_file", "file_url": "http://10.0.0.1/"}]},
    ],
)
async def test_media_in_a_private_network_are_refused_wherever_they_are(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="not public"):
        await read(input=[item]).require_media(ANN)
    await read(VllmWire(media=MediaRule(private=True)), input=[item]).require_media(ANN)


async def test_a_source_that_an_answer_quoted_is_no_medium() -> None:
    quoted = {"type": "url_citation", "url": "http://10.0.0.1/"}
    text = {"type": "output_text", "text": "So it is.", "annotations": [quoted]}
    await read(input=[{"type": "message", "role": "assistant", "content": [text]}]).require_media(ANN)


@pytest.mark.parametrize("name", ["request_id", "enable_response_messages", "previous_input_messages"])
def test_what_the_gateway_sets_is_not_the_clients_to_set(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="set by the gateway"):
        read(VllmWire(passed=frozenset({name})), input="hi", **{name: None})


@pytest.mark.parametrize("name", ["context_management", "moderation", "priority", "vllm_xargs"])
def test_what_the_engine_would_not_do_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        read(None, **{"input": "hi", name: {"some": "thing"}})


@pytest.mark.parametrize("given", [[1], ["hi"], [None, USER]])
def test_an_input_with_what_is_no_item_is_refused(given: Any) -> None:
    with pytest.raises(InvalidParameterError, match="list of objects"):
        read(input=given)


@pytest.mark.parametrize("odd", [[], {}, 1, None, "\0", {"a": []}])
async def test_an_item_of_odd_types_is_read_and_left_to_the_engine(odd: Any) -> None:
    names = (
        "type",
        "role",
        "content",
        "output",
        "call_id",
        "name",
        "arguments",
        "id",
        "summary",
        "namespace",
    )
    for kind in ("message", "function_call", "custom_tool_call", "function_call_output", "reasoning"):
        for name in names:
            item = {
                "type": kind,
                "role": "user",
                "content": [{"type": "input_text", "text": "hi"}],
                name: odd,
            }
            request = read(input=[item], instructions=odd, tools=odd, text=odd, previous_response_id=odd)
            await request.require_media(ANN)
            assert request.messages() is not None
            assert request.response.id == request.response_id


async def test_what_is_nested_as_deep_as_a_request_may_be_is_looked_through() -> None:
    nested: Any = IMAGE
    for _ in range(70):
        nested = [{"content": nested}]
    with pytest.raises(InvalidParameterError, match="not public"):
        await read(input=nested).require_media(ANN)
    for _ in range(330):
        nested = [{"content": nested}]
    with pytest.raises(InvalidParameterError, match="'input' is nested deeper than 160"):
        read(input=nested)


def test_the_background_is_refused_as_the_original_would() -> None:
    with pytest.raises(InvalidParameterError, match="Background mode is not supported"):
        read(input="hi", background=True)
    read(input="hi", background=False)


@pytest.mark.parametrize("kind", ["web_search", "allowed_tools", "mcp"])
def test_a_tool_choice_that_vllm_would_leave_out_is_refused(kind: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"Tool choice '{kind}' is not supported"):
        read(input="hi", tool_choice={"type": kind})


@pytest.mark.parametrize(
    "fields",
    [
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"pattern": "a" * 99}}}},
        {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": {"pattern": "a" * 99}}]},
        {"structured_outputs": {"regex": "a" * 99}},
    ],
)
def test_a_schema_that_would_take_long_to_compile_is_refused(fields: dict[str, Any]) -> None:
    wire = VllmWire(schemas=SchemaLimits(expansion=50))
    with pytest.raises(InvalidParameterError, match="multiply too far"):
        read(wire, input="hi", **fields)


def test_tools_are_limited_together_only_where_the_answer_is_constrained_to_them() -> None:
    wire = VllmWire(schemas=SchemaLimits(expansion=150))
    tools = [
        {"type": "function", "name": f"f{i}", "parameters": {"pattern": "a" * 99}, "strict": False}
        for i in range(2)
    ]
    namespace = {"type": "namespace", "name": "n", "tools": [{**tools[1], "strict": True}]}
    strict = {**tools[0], "strict": True}
    named = {"type": "function", "name": "f1"}
    for free in ({"tools": tools}, {"tools": [tools[0], namespace]}, {"tools": tools, "tool_choice": named}):
        read(wire, input="hi", **free)
    for constrained in ({"tool_choice": "required", "tools": tools}, {"tools": [strict, namespace]}):
        with pytest.raises(InvalidParameterError, match="multiply too far"):
            read(wire, input="hi", **constrained)


def test_an_answer_that_may_be_longer_than_the_model_takes_is_capped() -> None:
    request = read(input="hi", max_output_tokens=32_000).addressed_to("m", 512)
    assert request.capped == 512
    assert json.loads(request.body("s", weights="", recorded=False))["max_output_tokens"] == 512
