"""Every field at and past its limits; what is refused names the field and repeats no value."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.transport.mcp.gateway import Agent, Gateway, fastmcp_agent


@pytest.fixture
async def agent(gateway: Gateway, era: str) -> AsyncIterator[Agent]:
    """One that runs the gateway, who may use every tool."""
    async with fastmcp_agent(gateway.url, era, "acme") as one:
        yield one


pytestmark = pytest.mark.slow

HOSTILE = {
    "path": "../../etc/passwd",
    "spaces": "my window",
    "sql": "'; DROP TABLE windows; --",
    "shell": "$(reboot)`id`|cat",
    "nul": "a\x00b",
    "emoji": "window-😀",
    "long": "A" * 10_000,
    "newline": "window\n",
    "empty": "",
    "other letters": "fenêtre",
}
NO_STRINGS = (7, 1.5, True, ["w"], {"name": "w"})
SESSION_FIELDS = [
    ("window_freeze", "session_id", {"window_name": "w"}),
    ("window_thaw", "new_session_id", {"window_name": "w"}),
    ("window_status", "session_id", {}),
    ("session_create", "session_id", {}),
    ("session_generate", "session_id", {"text": "hi"}),
]
WINDOW_FIELDS = [
    ("window_freeze", "window_name", {"session_id": "s"}),
    ("window_thaw", "window_name", {}),
    ("window_status", "window_name", {}),
    ("window_clone", "source_window", {"target_window": "t"}),
    ("window_clone", "target_window", {"source_window": "s"}),
    ("window_delete", "window_name", {}),
]


@pytest.mark.parametrize(("tool", "field", "others"), SESSION_FIELDS)
@pytest.mark.parametrize("bad", HOSTILE)
async def test_a_hostile_session_id_is_cwm_1001(
    agent: Agent, tool: str, field: str, others: dict[str, Any], bad: str
) -> None:
    await refused(agent, tool, {**others, field: HOSTILE[bad]}, "CWM-1001", HOSTILE[bad])


@pytest.mark.parametrize(("tool", "field", "others"), WINDOW_FIELDS)
@pytest.mark.parametrize("bad", HOSTILE)
async def test_a_hostile_window_name_is_cwm_1002(
    agent: Agent, tool: str, field: str, others: dict[str, Any], bad: str
) -> None:
    await refused(agent, tool, {**others, field: HOSTILE[bad]}, "CWM-1002", HOSTILE[bad])


@pytest.mark.parametrize(("tool", "field", "others"), SESSION_FIELDS + WINDOW_FIELDS)
async def test_an_id_that_is_no_string_is_refused_as_a_malformed_id(
    agent: Agent, tool: str, field: str, others: dict[str, Any]
) -> None:
    code = "CWM-1001" if "session" in field else "CWM-1002"
    for bad in NO_STRINGS:
        error = await refused(agent, tool, {**others, field: bad}, code)
        assert error["context"]["field"] == field


WRONG: list[tuple[str, str, list[Any]]] = [
    ("window_freeze", "description", ["x" * 1001, "a\x00b", 5, ["x"]]),
    (
        "window_freeze",
        "tags",
        ["coding", ["a b"], ["x" * 33], [f"t{n}" for n in range(11)], [""], [1], [None]],
    ),
    ("window_freeze", "wait", ["yes", "true", 1, 0, []]),
    ("window_thaw", "continuation_prompt", ["x" * 10_001, 5, {"role": "user"}]),
    ("window_list", "tags", ["coding", [5], {}]),
    ("window_list", "model", [5, []]),
    ("window_list", "created_after", ["yesterday", "2027-01-22", "2027-01-22T10:30:00", "1700000000", 1, ""]),
    (
        "window_list",
        "created_before",
        ["2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00+23:59"],
    ),
    ("window_list", "sort_by", ["", "NAME", "created", 1]),
    ("window_list", "sort_order", ["up", "ASC", True]),
    ("window_list", "limit", [0, 101, -1, "20", 2.5, True, 10**30]),
    ("window_list", "offset", [-1, "0", 1.5]),
    ("window_list", "search", [5, ["x"]]),
    ("window_status", "include_blocks", ["yes", 1]),
    ("window_clone", "description", ["x" * 1001, 5, "a\x00b"]),
    ("window_clone", "tags", ["a", [1], ["a b"], [f"t{n}" for n in range(11)]]),
    ("window_delete", "force", ["yes", "true", 1]),
    ("window_delete", "delete_blocks", ["no", 0]),
    ("session_list", "state_filter", ["deleted", "", "ACTIVE", 1]),
    ("session_list", "limit", [0, 101, "50", 1.5]),
    ("health_check", "component", ["redis", "", "x" * 10_000, "a\x00b", 5]),
    ("get_metrics_data", "format", ["xml", "", "JSON", 1]),
    ("session_create", "model", ["", "x" * 513, 5]),
    ("session_create", "metadata", ["x", [1], {"k": "x" * 17_000}]),
    (
        "session_generate",
        "messages",
        [[], "hello", [{"content": "no role"}], [{"role": 5}], [{"role": "user", "content": 5}], [5]],
    ),
    ("session_generate", "text", [5, ["x"]]),
    ("session_move", "engine", ["", "x" * 81, 5]),
    ("engine_upgrade", "model", ["", "x" * 513, 5]),
    ("engine_upgrade", "to", ["", "x" * 257, 5]),
    ("session_generate", "max_tokens", [0, 32_769, "256", 1.5, True]),
    ("session_generate", "temperature", [-0.1, 2.1, "0", True]),
    ("session_generate", "top_p", [0, 1.1, "1"]),
    ("session_generate", "seed", [-1, 2**53, "1", 0.5]),
    ("session_generate", "stop", ["x", [""], ["x" * 257], ["x"] * 17, [5]]),
    ("session_generate", "tools", ["x", [5], [{}] * 129, [{"name": "é" * 11_000}]]),
]
COMPLETE: dict[str, dict[str, Any]] = {
    "window_freeze": {"session_id": "s", "window_name": "w"},
    "window_thaw": {"window_name": "w"},
    "window_clone": {"source_window": "w", "target_window": "v"},
    "window_delete": {"window_name": "w"},
    "window_status": {"window_name": "w"},
    "session_generate": {"session_id": "s", "text": "hi"},
    "session_move": {"session_id": "s"},
    "engine_upgrade": {"model": "m"},
}


@pytest.mark.parametrize(("tool", "field", "values"), WRONG, ids=[f"{t}.{f}" for t, f, _ in WRONG])
async def test_a_value_past_its_limits_is_cwm_1003_and_named(
    operator: Agent, tool: str, field: str, values: list[Any]
) -> None:
    for value in values:
        error = await refused(operator, tool, {**COMPLETE.get(tool, {}), field: value}, "CWM-1003", value)
        assert error["context"]["field"] == field, error
        assert field in error["message"].lower() or field == "tags", error


AT_THE_LIMIT: list[tuple[str, dict[str, Any], str]] = [
    ("session_move", {"session_id": "s", "engine": "e" * 80}, "CWM-2001"),
    ("window_freeze", {"session_id": "s" * 64, "window_name": "w" * 128}, "CWM-2001"),
    (
        "window_freeze",
        {
            "session_id": "-",
            "window_name": "_",
            "description": "😀" * 1000,
            "tags": [str(n) * 32 for n in range(10)],
            "wait": False,
        },
        "CWM-2001",
    ),
    ("window_thaw", {"window_name": "W" * 128, "new_session_id": "S" * 64}, "CWM-2002"),
    ("window_thaw", {"window_name": "w", "continuation_prompt": "x" * 10_000}, "CWM-2002"),
    (
        "window_clone",
        {"source_window": "a" * 128, "target_window": "b" * 128, "description": "x" * 1000},
        "CWM-2002",
    ),
    ("window_delete", {"window_name": "d" * 128, "force": True, "delete_blocks": False}, "CWM-2002"),
    ("window_status", {"session_id": "s" * 64, "include_blocks": True}, "CWM-2001"),
    ("window_status", {"window_name": "w" * 128}, "CWM-2002"),
    (
        "session_create",
        {"session_id": "s" * 64, "model": "m" * 512, "metadata": {"k": "x" * 16_000}},
        "CWM-5001",
    ),
    (
        "session_generate",
        {
            "session_id": "s" * 64,
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "tool_calls": []},
            ],
            "max_tokens": 32_768,
            "temperature": 2,
            "top_p": 1,
            "seed": 2**53 - 1,
            "stop": ["x" * 256] * 16,
            "tools": [{"type": "function", "description": "x" * 400}] * 128,
        },
        "CWM-2001",
    ),
]


@pytest.mark.parametrize(("tool", "arguments", "code"), AT_THE_LIMIT)
async def test_values_at_their_limits_reach_the_service(
    agent: Agent, tool: str, arguments: dict[str, Any], code: str
) -> None:
    await refused(agent, tool, arguments, code)


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 1, "offset": 2**70},
        {"limit": 20.0, "offset": 1e30},
        {"limit": 100, "sort_by": "size", "sort_order": "asc"},
        {"search": "%_\\'\"; DROP TABLE windows; --\x00😀"},
        {"search": "x" * 10_000},
        {"model": "../../x\x00"},
        {"tags": ["a b", "\x00", "😀"]},
        {"tags": [f"t{n}" for n in range(5000)]},
        {"created_after": "2026-01-22T10:30:00Z", "created_before": "2026-01-22t10:30:00.123456789+05:30"},
    ],
)
async def test_a_list_takes_whatever_its_schema_allows(agent: Agent, arguments: dict[str, Any]) -> None:
    assert (await agent.call("window_list", arguments)).value == {
        "windows": [],
        "total": 0,
        "has_more": False,
    }


async def test_null_for_an_optional_field_means_not_given(agent: Agent) -> None:
    nothing = dict.fromkeys(
        ["tags", "model", "created_after", "sort_by", "sort_order", "limit", "offset", "search"]
    )
    assert (await agent.call("window_list", nothing)).value["total"] == 0
    error = await refused(
        agent,
        "window_freeze",
        {"session_id": "s", "window_name": "w", "wait": None, "tags": None},
        "CWM-2001",
    )
    assert error["context"] == {"session_id": "s"}


async def test_null_for_a_required_or_unknown_field_is_refused(agent: Agent) -> None:
    await refused(agent, "window_thaw", {"window_name": None}, "CWM-1002")
    await refused(agent, "window_thaw", {"window_name": "w", "bogus": None}, "CWM-1003")


async def test_a_missing_field_is_named(agent: Agent) -> None:
    error = await refused(agent, "window_freeze", {"session_id": "s"}, "CWM-1002")
    assert error["message"] == "window_name: is required."
    error = await refused(agent, "window_clone", {}, "CWM-1002")
    assert error["context"] == {"field": "source_window", "fields": ["source_window", "target_window"]}


@pytest.mark.parametrize("name", ["bogus", "x\x00y", "z" * 10_000, "__proto__", "caller", "context"])
async def test_an_unknown_field_is_cwm_1003_and_named_in_short(agent: Agent, name: str) -> None:
    for tool in ("cache_stats", "window_delete", "session_generate"):
        error = await refused(agent, tool, {**COMPLETE.get(tool, {}), name: 1}, "CWM-1003")
        assert "is not a field of this tool" in error["message"]
        assert "\x00" not in error["message"]
        assert len(error["message"]) < 200


async def test_a_status_is_of_one_session_or_one_window(agent: Agent) -> None:
    error = await refused(agent, "window_status", {"session_id": "s", "window_name": "w"}, "CWM-1003")
    assert error["context"]["fields"] == ["session_id", "window_name"]


@pytest.mark.parametrize("arguments", [{}, {"text": "a", "messages": [{"role": "user", "content": "b"}]}])
async def test_a_turn_is_messages_or_text(agent: Agent, arguments: dict[str, Any]) -> None:
    await refused(agent, "session_generate", {"session_id": "s", **arguments}, "CWM-1003")


async def refused(
    agent: Agent, tool: str, arguments: dict[str, Any], code: str, secret: Any = None
) -> dict[str, Any]:
    """Call, and hold the error against the published shape."""
    answer = await agent.call(tool, arguments)
    error = answer.error
    assert error["code"] == code, error
    assert set(error) == {"code", "message", "retryable", "context"}
    assert answer.meta["dev.cwm/error"] == error
    assert answer.structured is None
    if isinstance(secret, str) and len(secret) > 4 and secret not in {"created", "deleted"}:
        assert secret not in json.dumps(error, ensure_ascii=False)
    return error
