"""What ``tools/list`` and ``resources/list`` publish is the contract, in both eras."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
from mcp_types import Tool

from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.errors import InvalidParameterError
from tests.transport.mcp.contract.fields import (
    ADDED_INPUTS,
    INPUTS,
    MOMENTS,
    OPTIONAL_SINCE,
    OUTPUT_ENUMS,
    OUTPUTS,
    RESOURCES,
)
from tests.transport.mcp.gateway import Agent, Gateway, fastmcp_agent

DECISIONS = Path(__file__).parents[4] / "docs" / "decisions"
READ_ONLY = {
    "turn_diff",
    "turn_left_out",
    "turn_log",
    "turn_search",
    "turn_show",
    "window_list",
    "window_status",
    "session_list",
    "cache_stats",
    "health_check",
    "get_metrics_data",
    "engine_list",
    "result_read",
    "result_query",
    "context_get",
    "context_list",
    "context_stats",
}
OURS = {
    "engine_list",
    "engine_drain",
    "engine_upgrade",
    "session_move",
    "window_rename",
    "session_create",
    "session_generate",
    "session_delete",
    "session_unfreeze",
    "session_merge",
    "session_share",
    "window_share",
    "turn_log",
    "turn_show",
    "turn_search",
    "turn_diff",
    "turn_left_out",
    "turn_branch",
    "turn_revert",
    "turn_delete",
    "turn_tag",
    "agent_session_create",
    "agent_session_end",
    "result_read",
    "result_query",
    "context_set",
    "context_get",
    "context_delete",
    "context_list",
    "context_snapshot",
    "context_restore",
    "context_stats",
}
DELETING = {
    "turn_delete",
    "turn_tag",
    "window_delete",
    "session_delete",
    "session_merge",
    "agent_session_end",
    "context_delete",
    "context_restore",
}


@pytest.fixture
async def agent(gateway: Gateway, era: str) -> AsyncIterator[Agent]:
    """One that runs the gateway, to whom every tool is listed."""
    async with fastmcp_agent(gateway.url, era, "acme") as one:
        yield one


@pytest.fixture
async def tools(agent: Agent) -> dict[str, Tool]:
    return {tool.name: tool for tool in await agent.client.list_tools()}


async def test_the_ten_tools_and_those_on_sessions_are_there(tools: dict[str, Tool]) -> None:
    assert set(tools) == set(INPUTS) | OURS


def test_one_field_of_the_first_contract_is_not_required_any_more() -> None:
    assert [*OPTIONAL_SINCE] == [("window_freeze", "session_id")]
    for number in OPTIONAL_SINCE.values():
        assert [*DECISIONS.glob(f"{number}-*.md")]


@pytest.mark.parametrize("name", INPUTS)
async def test_a_tool_takes_exactly_the_fields_of_the_contract(tools: dict[str, Tool], name: str) -> None:
    required, fields = INPUTS[name]
    schema = tools[name].input_schema
    assert without_descriptions(schema["properties"]) == {**fields, **ADDED_INPUTS.get(name, {})}
    assert sorted(schema.get("required", [])) == sorted(required)


async def test_a_tool_takes_fewer_than_ten_fields_but_for_those_of_decisions_0041_0046_and_0048(
    tools: dict[str, Tool],
) -> None:
    counts = {name: len(tool.input_schema["properties"]) for name, tool in tools.items()}
    assert {name: count for name, count in counts.items() if count >= 10} == {
        "window_freeze": 11,
        "window_list": 11,
        "result_query": 12,
    }
    required = [len(tool.input_schema.get("required", ())) for tool in tools.values()]
    assert sum(required) < 4 * len(required)


async def test_no_tool_takes_unknown_fields_or_publishes_alternatives_at_the_top(
    tools: dict[str, Tool],
) -> None:
    for tool in tools.values():
        schema = tool.input_schema
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert not {"oneOf", "anyOf", "allOf", "$ref", "$defs"} & schema.keys()


async def test_no_optional_field_publishes_null(tools: dict[str, Tool]) -> None:
    for tool in tools.values():
        required = tool.input_schema.get("required", [])
        for name, field in tool.input_schema["properties"].items():
            assert name in required or {"type": "null"} not in field.get("anyOf", [])
            assert field.get("default", ...) is not None


def offered(path: str, name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A tool as a client of this protocol offers it to a model."""
    if path == "/v1/messages":
        return {"name": name, "input_schema": schema, **more}
    function = {"name": name, "parameters": schema, **more}
    return {"type": "function", **(function if path == "/v1/responses" else {"function": function})}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_an_agent_may_offer_all_tools_to_its_model_beside_a_strict_one_of_its_own(
    tools: dict[str, Tool], path: str
) -> None:
    own = offered(path, "look", {"type": "object", "properties": {}}, strict=True)
    ours = [offered(path, name, tool.input_schema) for name, tool in tools.items()]
    said = {"model": "m", "tools": [own, *ours]}
    assert VllmWire().read(path, json.dumps(said).encode()) is not None
    # Were all of them constrained, the engine would compile each of their patterns.
    for tool in ours:
        tool.get("function", tool)["strict"] = True
    with pytest.raises(InvalidParameterError, match="CWM_SCHEMA_"):
        VllmWire().read(path, json.dumps(said).encode())


async def test_every_field_and_tool_says_what_it_is_for(tools: dict[str, Tool]) -> None:
    for tool in tools.values():
        assert tool.title
        assert "Errors: CWM-" in str(tool.description)
        for name, field in tool.input_schema["properties"].items():
            assert field.get("description"), f"{tool.name}.{name}"


@pytest.mark.parametrize("name", OUTPUTS)
async def test_a_tool_declares_every_field_of_its_answer(tools: dict[str, Tool], name: str) -> None:
    schema = tools[name].output_schema
    assert schema is not None
    assert {path: type_of(at(schema, path)) for path in OUTPUTS[name]} == OUTPUTS[name]
    for path, values in OUTPUT_ENUMS.get(name, {}).items():
        assert at(schema, path)["enum"] == values
    for path in MOMENTS.get(name, []):
        assert "'format': 'date-time'" in str(at(schema, path))


async def test_every_tool_has_an_example_of_a_call_and_its_answer_that_is_good_by_its_schemas(
    tools: dict[str, Tool],
) -> None:
    for tool in tools.values():
        for schema in (tool.input_schema, tool.output_schema):
            assert schema is not None
            (example,) = schema["examples"]
            assert example or not schema["properties"], f"{tool.name}: an empty example"
            Draft202012Validator(schema, format_checker=FormatChecker()).validate(example)


async def test_hints_tell_what_reads_what_destroys_and_what_may_be_repeated(tools: dict[str, Tool]) -> None:
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert {n for n, h in hints.items() if h and h.read_only_hint} == READ_ONLY
    assert {n for n, h in hints.items() if h and h.destructive_hint} == DELETING
    repeated = {n for n, h in hints.items() if h and h.idempotent_hint}
    assert repeated == READ_ONLY | DELETING | {
        "turn_revert",
        "session_share",
        "window_share",
        "session_move",
        "engine_drain",
        "engine_upgrade",
    }
    assert {n for n, h in hints.items() if h and h.open_world_hint} == set()


async def test_the_four_resources_are_json(agent: Agent) -> None:
    listed = {str(r.uri): r.mime_type for r in await agent.client.list_resources()}
    assert listed == dict.fromkeys(RESOURCES, "application/json")


def without_descriptions(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {k: v for k, v in field.items() if k != "description"} for name, field in properties.items()
    }


def at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for step in re.findall(r"[a-z_]+|\[\]", path):
        schema = schema["items"] if step == "[]" else schema["properties"][step]
    return schema


def type_of(schema: dict[str, Any]) -> str:
    if "anyOf" not in schema:
        return str(schema["type"])
    types = [choice["type"] for choice in schema["anyOf"]]
    assert types.pop() == "null"
    return f"{types.pop()}?"
