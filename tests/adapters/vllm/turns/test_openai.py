"""What of a request is read, refused and added."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta_messages
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.turns.request_fields import CHAT as CHAT_FIELDS
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.errors import InvalidParameterError
from cwm.domain.messages import message_of, profile_of
from cwm.domain.principal import Principal
from cwm.domain.turn import Profile

ANN = Principal("acme", "ann")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WIRE = VllmWire()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


# Fields of every kind of value: the gateway reads none of them.
PASSED = sorted(
    CHAT_FIELDS - VllmWire().guarded - {"n", "return_token_ids", "cache_salt", "kv_transfer_params"}
)


@given(
    fields=st.dictionaries(st.sampled_from(PASSED), json_values, max_size=5),
    space=st.sampled_from(["", " \n\t"]),
)
def test_every_field_but_ours_arrives_as_it_was_sent(fields: dict[str, Any], space: str) -> None:
    raw = (space + json.dumps(fields) + space).encode()
    request = WIRE.read(CHAT, raw)
    ours: dict[str, Any] = {"cache_salt": "salt", "return_token_ids": True}
    if fields.get("stream") is True and fields.get("stream_options") in (None, {}, {"include_usage": False}):
        # The usage alone says how many tokens were cached.
        ours["stream_options"] = {"include_usage": True}
    assert json.loads(request.body("salt", weights="", recorded=True)) == {**fields, **ours}


def test_a_turn_says_which_weights_it_expects() -> None:
    sent = json.loads(WIRE.read(CHAT, b'{"n":1}').body("s", weights="w-1", recorded=False))
    assert sent == {"n": 1, "cache_salt": "s", "kv_transfer_params": {"cwm.weights": "w-1"}}


def test_numbers_that_python_would_rewrite_keep_their_digits() -> None:
    raw = b'{"temperature":0.10000000000000000000001,"seed":1e2}'
    assert WIRE.read(CHAT, raw).body("s", weights="", recorded=False) == raw[:-1] + b',"cache_salt":"s"}'


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_other_encodings_of_json_are_understood(encoding: str) -> None:
    raw = json.dumps({"prompt": "été"}).encode(encoding)
    sent = WIRE.read(COMPLETIONS, raw).body("s", weights="", recorded=False)
    assert json.loads(sent) == {"prompt": "été", "cache_salt": "s"}


def test_a_client_that_says_no_to_ids_gets_none_and_the_session_has_them() -> None:
    request = WIRE.read(CHAT, b'{"return_token_ids":false}')
    assert json.loads(request.body("s", weights="", recorded=True))["return_token_ids"] is True


@pytest.mark.parametrize("name", ["cache_salt", "kv_transfer_params", "cache\\u005fsalt"])
def test_what_the_gateway_sets_is_refused(name: str) -> None:
    wire = VllmWire(passed=frozenset({"vllm_xargs"}))
    for body in (f'{{"{name}": null}}', f'{{"vllm_xargs": {{"{name}": "x"}}}}'):
        with pytest.raises(InvalidParameterError, match="set by the gateway"):
            wire.read(CHAT, body.encode())


@pytest.mark.parametrize("xargs", ["null", "{}", '{"mine": 1}', '"kv_transfer_params"'])
def test_other_extra_arguments_pass_where_a_setting_says_so(xargs: str) -> None:
    body = f'{{"vllm_xargs":{xargs}}}'.encode()
    wire = VllmWire(passed=frozenset({"vllm_xargs"}))
    assert json.loads(wire.read(CHAT, body).body("s", weights="", recorded=False))[
        "vllm_xargs"
    ] == json.loads(xargs)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", ["priority", "ec_transfer_params", "vllm_xargs", "kv_hints"])
def test_a_field_that_is_the_operators_is_refused_by_name(path: str, name: str) -> None:
    body = json.dumps({name: 1}).encode()
    with pytest.raises(InvalidParameterError, match=f"'{name}'.*CWM_PASSED_FIELDS") as refused:
        WIRE.read(path, body)
    assert refused.value.context == {"field": name, "setting": "CWM_PASSED_FIELDS"}
    wire = VllmWire(passed=frozenset({name}))
    assert name in json.loads(wire.read(path, body).body("s", weights="", recorded=False))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", ["made_up", "search_parameters", "guided_json", "", "n "])
def test_a_field_that_nobody_knows_is_dropped_and_named(path: str, name: str) -> None:
    body = json.dumps({name: {"any": "thing"}, "n": 1}).encode()
    request = WIRE.read(path, body)
    assert request.dropped == (name,)
    assert json.loads(request.body("s", weights="", recorded=False)) == {"n": 1, "cache_salt": "s"}
    wire = VllmWire(passed=frozenset({name}))
    assert name in json.loads(wire.read(path, body).body("s", weights="", recorded=False))


@pytest.mark.parametrize("name", ["made_up", "functions", "audio", "priority", "thinking", "vllm_xargs"])
@pytest.mark.parametrize("value", [None, [], {}, ""])
def test_an_empty_field_of_any_name_asks_for_nothing(name: str, value: Any) -> None:
    request = WIRE.read(CHAT, json.dumps({name: value}).encode())
    assert request.dropped == ()
    assert json.loads(request.body("s", weights="", recorded=False)) == {"cache_salt": "s"}


@pytest.mark.parametrize("name", ["messages", "tools", "documents"])
def test_more_elements_than_any_client_sends_are_refused_before_they_are_looked_at(name: str) -> None:
    assert WIRE.read(CHAT, json.dumps({name: [{}] * 10_000}).encode())
    with pytest.raises(InvalidParameterError, match=f"'{name}' has a length of 10001; at most 10000"):
        WIRE.read(CHAT, json.dumps({name: [{}] * 10_001}).encode())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({f"f{number}": 1 for number in range(1_001)}, "body"),
        ({"messages": [{"role": "user", "content": [0] * 10_001}] * 2}, "messages.content"),
        ({"model": "{" * 2_001}, "model"),
    ],
)
def test_more_than_any_client_sends_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"'{field}' has a length of") as refused:
        WIRE.read(CHAT, json.dumps(fields).encode())
    assert refused.value.context["field"] == field


DOCUMENTED = [
    (CHAT, chat.CompletionCreateParamsBase),
    (COMPLETIONS, completions.CompletionCreateParamsBase),
    ("/v1/responses", responses.ResponseCreateParamsBase),
    ("/v1/messages", messages.MessageCreateParamsBase),
    ("/v1/messages", beta_messages.MessageCreateParamsBase),
]


@pytest.mark.parametrize(("path", "parameters"), DOCUMENTED)
def test_what_an_api_documents_is_served_or_refused_and_never_dropped(path: str, parameters: type) -> None:
    # The header of that name, which Anthropic's SDK takes as a parameter.
    for name in parameters.__annotations__.keys() - {"betas"}:
        with suppress(InvalidParameterError):
            assert WIRE.read(path, json.dumps({name: {"some": "thing"}}).encode()).dropped == ()


def test_what_asks_for_what_vllm_does_anyway_passes() -> None:
    usual = {"function_call": "auto", "modalities": ["text"]}
    assert WIRE.read(CHAT, json.dumps(usual).encode()).messages() == ()
    with pytest.raises(InvalidParameterError, match="'modalities' is not done by this server"):
        WIRE.read(CHAT, b'{"modalities": ["text", "audio"]}')


@pytest.mark.parametrize(
    ("fields", "switches", "options"),
    [
        ({"enable_thinking": False}, {"enable_thinking"}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"thinking"}, {"thinking": False}),
        ({"thinking": {"type": "enabled"}}, {"enable_thinking", "thinking"}, {"enable_thinking": True, "thinking": True}),
        ({"reasoning": {"effort": "none"}}, {"enable_thinking"}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort"}, {"reasoning_effort": "low"}),
        ({"reasoning": {"enabled": True}}, {"thinking"}, {"thinking": True}),
    ],
)  # fmt: skip
def test_what_other_servers_clients_say_of_thoughts_is_said_by_the_templates_switch(
    fields: dict[str, Any], switches: set[str], options: dict[str, Any]
) -> None:
    read = WIRE.read(CHAT, json.dumps(fields).encode())
    request = read.addressed_to("m", 100, switches)
    sent = json.loads(request.body("s", weights="", recorded=False))
    assert sent == {"chat_template_kwargs": options, "cache_salt": "s"}
    assert (request.dropped, request.template_options()) == ((), {"chat_template_kwargs": options})
    # Without a switch nothing can be said, and that is told.
    assert read.addressed_to("m", 100).dropped == tuple(fields)
    own = {**fields, "chat_template_kwargs": dict.fromkeys(options, "own")}
    kept = WIRE.read(CHAT, json.dumps(own).encode()).addressed_to("m", 100, switches)
    assert kept.template_options() == {"chat_template_kwargs": dict.fromkeys(options, "own")}


def test_what_openais_clients_send_passes() -> None:
    fields = {
        "messages": [],
        "store": False,
        "metadata": {"a": "b"},
        "user": "u",
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "verbosity": "low",
        "max_completion_tokens": 5,
        "tool_choice": "auto",
        "seed": 1,
    }
    assert json.loads(WIRE.read(CHAT, json.dumps(fields).encode()).body("s", weights="", recorded=False)) == {
        **fields,
        "cache_salt": "s",
    }
    assert WIRE.read(COMPLETIONS, b'{"messages": [{}]}').dropped == ("messages",)


@pytest.mark.parametrize("name", ["x-data-parallel-rank", "x-vllm-priority", "x-vllm-anything-new"])
def test_a_header_that_routes_inside_the_engine_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"'{name}'") as refused:
        WIRE.read(CHAT, b"{}", {name: "3"})
    assert refused.value.context["field"] == name
    VllmWire(passed=frozenset({name})).read(CHAT, b"{}", {name: "3"})
    WIRE.read(CHAT, b"{}", {"x-session-id": "a", "x-stainless-os": "b", "x-request-id": "c"})


async def test_media_at_a_private_address_is_refused_unless_a_setting_widens_it() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    with pytest.raises(InvalidParameterError, match="CWM_PRIVATE_MEDIA"):
        await WIRE.read(CHAT, body).require_media(ANN)
    await VllmWire(media=MediaRule(private=True)).read(CHAT, body).require_media(ANN)


BOMB = {"type": "object", "properties": {"p": {"type": "string", "pattern": "(a{1,100}){1,100}"}}}
STRICT = {"type": "function", "function": {"name": "t", "parameters": BOMB, "strict": True}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": BOMB}}),
        ("response_format", {"type": "structural_tag", "format": {"type": "regex", "pattern": "a{1,9999}"}}),
        ("structured_outputs", {"json": BOMB}),
        ("structured_outputs", {"json": json.dumps(BOMB)}),
        ("structured_outputs", {"regex": "(a{1,100}){1,100}"}),
        ("structured_outputs", {"grammar": 'root ::= ("a"{1,100}){1,100}'}),
        ("structured_outputs", {"choice": ["x" * 1_000] * 200}),
        ("structured_outputs", {"structural_tag": json.dumps({"structures": [{"schema": BOMB}]})}),
        ("tools", [STRICT]),
    ],
)
def test_what_an_engine_would_compile_for_minutes_is_refused_in_every_field(field: str, value: Any) -> None:
    for path in (CHAT, COMPLETIONS) if field != "tools" else (CHAT,):
        with pytest.raises(InvalidParameterError, match=f"'{field}' .*CWM_SCHEMA_"):
            WIRE.read(path, json.dumps({field: value}).encode())


@pytest.mark.parametrize(
    ("strict", "constrained"),
    [(False, {"tool_choice": "required"}), (True, {"parallel_tool_calls": False}), (True, {})],
)
def test_tools_that_constrain_an_answer_count_as_one_schema(
    constrained: dict[str, Any], *, strict: bool
) -> None:
    parameters: dict[str, Any] = {"properties": {f"p{number}": {} for number in range(600)}}
    tool = {"type": "function", "function": {"name": "t", "parameters": parameters}}
    WIRE.read(CHAT, json.dumps({"tools": [tool, tool], "tool_choice": "auto"}).encode())
    tool["function"] = {"name": "t", "parameters": parameters, "strict": strict}
    with pytest.raises(InvalidParameterError, match="CWM_SCHEMA_PROPERTIES"):
        WIRE.read(CHAT, json.dumps({**constrained, "tools": [tool, tool]}).encode())


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"child": schema}}
    return schema


ORDINARY: dict[str, Any] = {
    "a form": {f"f{number}": {"type": "string", "maxLength": 255} for number in range(60)},
    "a pattern": {"url": {"type": "string", "pattern": "^https?://.{1,2048}$"}},
    "deep": {"child": nested(40)},
    "a bomb": {"bomb": BOMB},
}


@pytest.mark.parametrize("more", [{}, {"parallel_tool_calls": False}, {"tool_choice": "none"}])
@pytest.mark.parametrize("name", ORDINARY)
def test_tools_of_which_the_engine_compiles_nothing_pass(name: str, more: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": ORDINARY[name]}
    tools = [
        {"type": "function", "function": {"name": f"t{number}", "parameters": parameters}}
        for number in range(100)
    ]
    assert WIRE.read(CHAT, json.dumps({"tools": tools, **more}).encode()).sequences == 1


@pytest.mark.parametrize(
    "choice", ["auto", {"type": "function", "function": {"name": "t1"}}], ids=["auto", "named"]
)
def test_tools_that_constrain_no_answer_do_not_count_with_those_that_do(choice: Any) -> None:
    parameters: dict[str, Any] = {"properties": {f"p{number}": {} for number in range(600)}}
    functions = [
        {"name": f"t{number}", "parameters": parameters, "strict": number == 0} for number in range(3)
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    WIRE.read(CHAT, json.dumps({"tools": tools, "tool_choice": choice}).encode())


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe\x00", b"[" * 200_000, b'{"a":' * 200_000, b"1" * 5000],
)
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidParameterError):
        WIRE.read(CHAT, raw)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]]])
def test_a_session_takes_one_prompt(prompt: list[Any]) -> None:
    request = WIRE.read(COMPLETIONS, json.dumps({"prompt": prompt}).encode())
    with pytest.raises(InvalidParameterError, match="one prompt"):
        request.require_recordable()


@pytest.mark.parametrize("prompt", ["a", ["a"], [1, 2, 3], [[1, 2, 3]], []])
def test_one_prompt_in_any_form_is_recordable(prompt: Any) -> None:
    WIRE.read(COMPLETIONS, json.dumps({"prompt": prompt}).encode()).require_recordable()


@pytest.mark.parametrize(
    ("path", "fields"), [(COMPLETIONS, {"echo": True}), (CHAT, {"include_reasoning": False})]
)
def test_options_that_hide_tokens_from_a_session_are_refused(path: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        WIRE.read(path, json.dumps(fields).encode()).require_recordable()


@pytest.mark.parametrize(
    ("prompt", "count"), [([1, 2, 3], 3), ([[1], [1, 2]], 2), ("text", None), (["a", "b"], None), ([], None)]
)
def test_prompts_of_ids_are_counted(prompt: Any, count: int | None) -> None:
    assert WIRE.read(COMPLETIONS, json.dumps({"prompt": prompt}).encode()).prompt_tokens == count


@pytest.mark.parametrize(
    ("path", "fields", "sequences"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": None}, 1),
        (CHAT, {"n": 5}, 5),
        (CHAT, {"n": 8.0, "use_beam_search": True}, 8),
        (COMPLETIONS, {"prompt": "a", "n": 3}, 3),
        (COMPLETIONS, {"prompt": [1, 2, 3], "n": 4, "use_beam_search": True}, 4),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, 6),
        (COMPLETIONS, {"prompt": [[1], [2], [3]], "n": 2}, 6),
        (COMPLETIONS, {"prompt": "a", "prompt_embeds": ["x", "y"], "n": 2}, 6),
        (COMPLETIONS, {"prompt": [], "n": 0}, 1),
        (COMPLETIONS, {"prompt": ["a"] * 8, "n": 8}, 64),
    ],
)
def test_a_request_is_as_many_as_its_prompts_times_its_answers(
    path: str, fields: dict[str, Any], sequences: int
) -> None:
    assert WIRE.read(path, json.dumps(fields).encode()).sequences == sequences


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("n", {"n": 65}),
        ("n", {"n": 2, "prompt": ["a"] * 33}),
        ("prompt", {"prompt": ["a"] * 65}),
        ("n", {"n": "2000"}),
        ("n", {"n": True}),
        ("n", {"n": 1e400}),
        ("n", {"n": 1.5}),
    ],
)
def test_one_request_that_is_too_many_is_refused(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        WIRE.read(COMPLETIONS, json.dumps(fields).replace("Infinity", "1e400").encode())
    assert refused.value.context["field"] == field


def test_texts_are_those_of_messages_in_both_forms() -> None:
    messages = [
        {"role": "user", "content": "one"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "assistant", "content": None},
        "not a message",
    ]
    assert list(WIRE.read(CHAT, json.dumps({"messages": messages}).encode()).texts())[:2] == ["one", "two"]


def test_a_chat_gives_its_messages_in_order_and_its_profile() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        "not a message",
        {"role": "assistant", "content": None, "reasoning": "Think."},
    ]
    tools = [{"type": "function", "function": {"name": "bash"}}]
    request = WIRE.read(CHAT, json.dumps({"messages": messages, "tools": tools}).encode())
    contents = [message for message in messages if isinstance(message, dict)]
    assert request.messages() == tuple(message_of(content) for content in contents)
    assert [message.content for message in request.messages()] == contents
    assert request.profile() == profile_of(contents, tools)


def test_messages_and_profile_are_computed_once() -> None:
    request = WIRE.read(CHAT, b'{"messages": [{"role": "user", "content": "hi"}], "tools": [{}]}')
    assert request.messages() is request.messages()
    assert request.profile() is request.profile()


@pytest.mark.parametrize(
    ("prompt", "texts"), [("Once", ["Once"]), (["Once"], ["Once"]), ([1, 2], []), ([[1, 2]], []), (None, [])]
)
def test_a_completion_gives_its_text_as_a_message_and_no_profile(prompt: Any, texts: list[str]) -> None:
    request = WIRE.read(COMPLETIONS, json.dumps({"prompt": prompt}).encode())
    assert [message.content for message in request.messages()] == [
        {"role": "prompt", "content": text} for text in texts
    ]
    assert request.profile() == Profile()


@pytest.mark.parametrize("messages", [None, {}, "hi", [], [1, None, ["hi"]]])
def test_what_is_no_list_of_messages_gives_none(messages: Any) -> None:
    request = WIRE.read(CHAT, json.dumps({"messages": messages, "tools": messages}).encode())
    assert request.messages() == ()


@given(messages=st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), json_values)))
def test_reading_messages_changes_nothing_that_is_sent(messages: list[dict[str, Any]]) -> None:
    request = WIRE.read(CHAT, json.dumps({"messages": messages}).encode())
    assert len(request.messages()) == len(messages)
    request.profile()
    assert json.loads(request.body("s", weights="", recorded=False))["messages"] == messages
    assert request.fields["messages"] == messages
