"""Budgets of results through a real gateway: clients of both eras, a real upstream server behind it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp_types import CallToolResult, ImageContent, ResourceLink, TextContent, TextResourceContents

from cwm.domain.budgets import Budgets
from cwm.domain.errors import StorageWriteError
from cwm.domain.tool_policy import PreviewKind, ToolPolicies, ToolPolicy
from tests.transport.mcp.gateway import MODERN, Agent, Gateway, fastmcp_agent, gateway, sdk_agent
from tests.transport.mcp.talkative_server import Given, prose, rows, talkative
from tests.transport.mcp.wire import MODERN_META, Wire, initialize, wired

pytestmark = pytest.mark.slow

POLICY = ToolPolicy(max_tokens=1_500, preview_tokens=600)
BUDGETS = Budgets(policies=ToolPolicies(POLICY))
LONG = 60_000
CHARACTERS_A_TOKEN = 6
"""More than there are on average."""


@dataclass(frozen=True, slots=True)
class Fronted:
    """A gateway in front of the talkative server, as ``t``."""

    gateway: Gateway
    given: Given

    def configure(self, budgets: Budgets) -> None:
        self.gateway.parts.services.delivery.budgets = budgets


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronted]:
    """One a file."""
    async with (
        talkative("t") as (spec, given),
        gateway(tmp_path_factory.mktemp("gateway"), upstreams=[spec]) as started,
    ):
        yield Fronted(started, given)


@pytest.fixture
def fronted(running: Fronted) -> Fronted:
    """With the budgets of these tests in force."""
    running.configure(BUDGETS)
    running.given.values.clear()
    return running


@pytest.fixture
async def agent(fronted: Fronted, era: str) -> AsyncIterator[Agent]:
    async with fastmcp_agent(fronted.gateway.url, era) as one:
        yield one


@pytest.fixture
async def wire(fronted: Fronted) -> AsyncIterator[Wire]:
    async with wired(fronted.gateway.url) as one:
        yield one


async def call(agent: Agent, tool: str, **arguments: Any) -> CallToolResult:
    result = await agent.client.call_tool_mcp(tool, arguments)
    assert isinstance(result, CallToolResult)
    return result


def kept(result: CallToolResult) -> dict[str, Any]:
    """What programs are told of a stored result."""
    assert result.meta is not None
    told = result.meta["dev.cwm/result"]
    assert isinstance(told, dict)
    return told


def is_whole(result: CallToolResult) -> bool:
    return "dev.cwm/result" not in (result.meta or {})


def texts(result: CallToolResult) -> list[str]:
    return [item.text for item in result.content if isinstance(item, TextContent)]


async def read_all(agent: Agent, cursor: str) -> dict[int, bytes]:
    """All pages from ``cursor`` on, put together by part."""
    parts: dict[int, bytes] = {}
    while cursor:
        page = (await agent.call("result_read", {"cursor": cursor})).value
        text = page["text"]
        body = base64.b64decode(text) if page["encoding"] == "base64" else text.encode()
        parts[page["part"]] = parts.get(page["part"], b"") + body
        cursor = page.get("next_cursor", "")
    return parts


def in_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("t_list", {"count": 2}),
        ("t_prose", {"size": 300}),
        ("t_rows", {"count": 3}),
        ("t_mixed", {"size": 100}),
        ("t_fail", {"size": 100}),
        ("t_take", {"value": {"a": [1, None]}}),
        ("window_list", {}),
        ("window_status", {"window_name": "nothing"}),
    ],
)
async def test_a_result_within_budget_is_byte_for_byte_what_it_is_without_budgets(
    fronted: Fronted, wire: Wire, era: str, tool: str, arguments: dict[str, Any]
) -> None:
    async def answered() -> bytes:
        headers = {"x_tenant": "acme"}
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if era == MODERN:
            headers |= {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": tool}
            params["_meta"] = MODERN_META
        else:
            headers |= {"mcp_session_id": await wire.session(**headers)}
        body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
        answer = await wire.post(body, **headers)
        assert answer.status_code == 200, answer.text
        assert "content" in answer.text
        return answer.content

    within = await answered()
    fronted.configure(replace(BUDGETS, enabled=False))
    assert within == await answered()


async def test_a_long_text_is_shown_in_part_and_its_pages_put_together_are_the_text(agent: Agent) -> None:
    result = await call(agent, "t_prose", size=LONG)
    told = kept(result)
    assert sum(map(len, texts(result))) < CHARACTERS_A_TOKEN * POLICY.preview_tokens
    assert told["delivered_tokens"] <= POLICY.preview_tokens
    assert told["tokens"] > 10_000
    (note,) = [text for text in texts(result) if text.startswith("[CWM preview]")]
    assert told["handle"] in note
    assert told["cursor"] in note
    assert f"{told['tokens']:,} tokens" in note
    assert await read_all(agent, told["cursor"]) == {0: prose(LONG).encode()}


async def test_the_whole_result_is_a_resource_that_the_preview_links_to(agent: Agent) -> None:
    result = await call(agent, "t_prose", size=LONG)
    (link,) = [item for item in result.content if isinstance(item, ResourceLink)]
    assert link.size == len(prose(LONG).encode())
    (read,) = await agent.client.read_resource(str(link.uri))
    assert isinstance(read, TextResourceContents)
    assert read.text == prose(LONG)


@pytest.mark.parametrize(
    ("version", "linked"), [("2025-03-26", False), ("2025-06-18", True), ("2025-11-25", True)]
)
async def test_only_clients_that_know_of_links_get_one(wire: Wire, version: str, linked: bool) -> None:
    begun = await wire.post(initialize(protocolVersion=version))
    headers = {"mcp_session_id": begun.headers["mcp-session-id"], "mcp_protocol_version": version}
    params = {"name": "t_prose", "arguments": {"size": LONG}}
    body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
    answer = await wire.post(body, **headers)
    assert "[CWM preview]" in answer.text
    assert ('"resource_link"' in answer.text) is linked


async def test_the_protocols_own_client_reads_on_too(fronted: Fronted, era: str) -> None:
    async with sdk_agent(fronted.gateway.url, era) as agent:
        answer = await agent.call("t_prose", {"size": LONG})
        cursor = answer.meta["dev.cwm/result"]["cursor"]
        assert await read_all(agent, cursor) == {0: prose(LONG).encode()}


async def test_a_preview_keeps_to_the_schema_that_strict_clients_hold_it_against(agent: Agent) -> None:
    tools = {tool.name: tool for tool in await agent.client.list_tools()}
    schema = tools["t_rows"].output_schema
    assert schema is not None
    result = await call(agent, "t_rows", count=300)
    Draft202012Validator(schema).validate(result.structured_content)
    assert json.loads(texts(result)[0]) == result.structured_content
    assert 0 < len(result.structured_content["rows"]) < 300
    assert json.loads((await read_all(agent, kept(result)["cursor"]))[0]) == rows(300)


async def test_a_list_with_a_text_for_each_item_is_kept_once_and_shown_alike_in_both(agent: Agent) -> None:
    tools = {tool.name: tool for tool in await agent.client.list_tools()}
    result = await call(agent, "t_list", count=300)
    Draft202012Validator(tools["t_list"].output_schema).validate(result.structured_content)
    shown = result.structured_content["result"]
    assert 0 < len(shown) < 300
    assert [json.loads(text) for text in texts(result)[:-1]] == shown
    assert await read_all(agent, kept(result)["cursor"]) == {0: in_json({"result": rows(300)["rows"]})}


async def test_something_in_a_stored_result_is_found_without_reading_it(agent: Agent) -> None:
    handle = kept(await call(agent, "t_rows", count=300))["handle"]
    found = await agent.call("result_query", {"handle": handle, "jmespath": "rows[?id == `250`].name | [0]"})
    assert json.loads(found.value["text"]) == "row 250"


async def test_every_part_of_a_mixed_result_is_kept_and_its_own_meta_stays(agent: Agent) -> None:
    fits = await call(agent, "t_mixed", size=100)
    assert any(isinstance(item, ImageContent) for item in fits.content)
    result = await call(agent, "t_mixed", size=LONG)
    assert result.meta is not None
    assert result.meta["example.org/kept"] is True
    parts = await read_all(agent, kept(result)["cursor"])
    assert parts[0] == prose(LONG).encode()
    assert len(parts[1]) == LONG
    assert json.loads(parts[2]) == {"size": LONG}


async def test_what_a_result_says_about_its_items_is_kept_with_them(agent: Agent) -> None:
    result = await call(agent, "t_letter", size=LONG)
    parts = await read_all(agent, kept(result)["cursor"])
    assert [parts[0], parts[1]] == [prose(LONG).encode(), b'{"a": 1}']
    about = json.loads(parts[2])
    assert about["_meta"] == {"example.org/kept": True}
    assert about["content"] == [
        {
            "type": "text",
            "annotations": {"audience": ["user"], "priority": 0.5},
            "_meta": {"example.org/page": 1},
        },
        {
            "type": "resource",
            "resource": {"uri": "notes://t/today", "mimeType": "text/plain", "_meta": {"x": 2}},
        },
    ]


async def test_a_huge_error_stays_an_error_and_is_kept_too(agent: Agent) -> None:
    result = await call(agent, "t_fail", size=LONG)
    assert result.is_error
    assert result.structured_content is None
    assert kept(result)["delivered_tokens"] <= POLICY.preview_tokens
    assert prose(LONG).encode() in (await read_all(agent, kept(result)["cursor"]))[0]


async def test_the_same_result_is_shown_in_the_same_bytes(agent: Agent) -> None:
    first, second = [texts(await call(agent, "t_prose", size=LONG))[0] for _ in range(2)]
    assert first == second


async def test_what_reads_a_stored_result_is_not_stored_again(fronted: Fronted, agent: Agent) -> None:
    fronted.configure(Budgets(policies=ToolPolicies(ToolPolicy(max_tokens=200, preview_tokens=200))))
    cursor = kept(await call(agent, "t_prose", size=LONG))["cursor"]
    for tool, arguments in (
        ("result_read", {"cursor": cursor, "max_tokens": 10_000}),
        ("result_query", {"handle": kept(await call(agent, "t_prose", size=LONG))["handle"], "head": 5}),
    ):
        assert is_whole(await call(agent, tool, **arguments))


async def test_what_reads_on_keeps_to_the_budget_however_much_it_is_asked_for(
    fronted: Fronted, agent: Agent
) -> None:
    fronted.configure(Budgets(policies=ToolPolicies(ToolPolicy(max_tokens=300, preview_tokens=300))))
    handle = kept(await call(agent, "t_prose", size=LONG))["handle"]
    for tool, arguments in (
        ("result_read", {}),
        ("result_read", {"max_tokens": 10_000}),
        ("result_read", {"max_tokens": 10_000.0}),
        ("result_read", {"max_tokens": None}),
        ("result_query", {"search": "e", "max_tokens": 10_000}),
        ("result_query", {"search": "e", "max_tokens": 10_000.0}),
        ("result_query", {"search": "e", "max_tokens": None}),
    ):
        answer = await call(agent, tool, handle=handle, **arguments)
        assert 0 < answer.structured_content["tokens"] <= 300
        assert answer.structured_content["next_cursor"]
    asked = await call(agent, "result_read", handle=handle, max_tokens=100)
    assert asked.structured_content["tokens"] <= 100


async def test_a_tool_goes_by_its_own_policy_from_the_moment_that_it_changes(
    fronted: Fronted, agent: Agent
) -> None:
    by_name = {
        "t_prose": ToolPolicy(max_tokens=None),
        "t_r*": replace(POLICY, preview=PreviewKind.PROJECT, fields=("rows[*].name",)),
    }
    fronted.configure(replace(BUDGETS, policies=ToolPolicies(POLICY, by_name)))
    assert texts(await call(agent, "t_prose", size=LONG)) == [prose(LONG)]
    assert not is_whole(await call(agent, "t_rows", count=300))
    fronted.configure(replace(BUDGETS, enabled=False))
    assert len((await call(agent, "t_rows", count=300)).structured_content["rows"]) == 300


async def test_a_budget_tightens_as_the_agents_window_fills(fronted: Fronted) -> None:
    fronted.configure(replace(BUDGETS, window_tokens=4_000, window_share=0.5))
    async with fastmcp_agent(fronted.gateway.url, "legacy") as agent:
        assert is_whole(await call(agent, "t_prose", size=3_000))
        while is_whole(result := await call(agent, "t_prose", size=3_000)):
            pass
        assert kept(result)["tokens"] < POLICY.max_tokens
        # What takes no more than a preview is never cut.
        assert is_whole(await call(agent, "t_prose", size=800))
    async with fastmcp_agent(fronted.gateway.url, "legacy") as other:
        assert is_whole(await call(other, "t_prose", size=3_000))


async def test_agents_of_a_protocol_without_sessions_have_a_window_each_by_their_handle(
    fronted: Fronted,
) -> None:
    fronted.configure(replace(BUDGETS, window_tokens=4_000, window_share=0.5))
    async with fastmcp_agent(fronted.gateway.url, MODERN) as agent:
        one, other = [(await agent.call("agent_session_create")).value["agent_session"] for _ in range(2)]

        async def whole_for(handle: str | None) -> bool:
            meta = {} if handle is None else {"dev.cwm/agent-session": handle}
            return is_whole(await agent.client.call_tool_mcp("t_prose", {"size": 3_000}, meta=meta))

        assert [await whole_for(None) for _ in range(8)] == [True] * 8
        while await whole_for(one):
            pass
        assert await whole_for(other)
        assert await whole_for(None)


async def test_a_result_that_cannot_be_kept_is_shown_with_a_warning(
    fronted: Fronted, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StorageWriteError("The store is away.")

    results = fronted.gateway.parts.services.results
    monkeypatch.setattr(type(results), "keep", away)
    result = await call(agent, "t_prose", size=LONG)
    told = kept(result)
    assert told["not_kept"]["code"] == "CWM-4001"
    assert "handle" not in told
    # There is no second look, so all of the budget is used.
    assert POLICY.preview_tokens < told["delivered_tokens"] <= POLICY.max_tokens
    (note,) = [text for text in texts(result) if text.startswith("[CWM preview]")]
    assert "WARNING" in note
    assert not [item for item in result.content if isinstance(item, ResourceLink)]


async def test_a_result_that_the_store_fails_on_is_shown_as_far_as_the_budget_goes(
    fronted: Fronted, agent: Agent
) -> None:
    endless = replace(POLICY, result_ttl_seconds=1e12)
    fronted.configure(replace(BUDGETS, policies=ToolPolicies(endless)))
    told = kept(await call(agent, "t_prose", size=LONG))
    assert told["not_kept"]["code"] == "CWM-9001"
    assert POLICY.preview_tokens < told["delivered_tokens"] <= POLICY.max_tokens


@pytest.fixture
def without_previews(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("never")

    monkeypatch.setattr("cwm.services.results.delivery.preview_result", broken)


@pytest.mark.usefixtures("without_previews")
async def test_a_result_that_no_preview_can_be_made_of_shows_how_it_begins(agent: Agent) -> None:
    result = await call(agent, "t_prose", size=LONG)
    told = kept(result)
    assert told["delivered_tokens"] <= POLICY.preview_tokens
    assert texts(result)[0]
    assert prose(LONG).startswith(texts(result)[0])
    assert await read_all(agent, told["cursor"]) == {0: prose(LONG).encode()}


@pytest.mark.usefixtures("without_previews")
async def test_what_lacks_its_structured_content_reaches_strict_clients_and_says_that_the_tool_did_not_fail(
    fronted: Fronted, era: str
) -> None:
    async with sdk_agent(fronted.gateway.url, era) as agent:
        await agent.client.list_tools()
        answer = await agent.call("t_rows", {"count": 300})
        assert answer.is_error
        assert answer.structured is None
        cursor = answer.meta["dev.cwm/result"]["cursor"]
        assert json.loads((await read_all(agent, cursor))[0]) == rows(300)


async def test_a_result_that_cannot_even_be_counted_keeps_to_the_budget(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("never")

    monkeypatch.setattr("cwm.services.results.delivery.count", broken)
    assert is_whole(await call(agent, "t_prose", size=300))
    result = await call(agent, "t_prose", size=LONG)
    assert kept(result)["not_kept"]["code"] == "CWM-9001"
    assert POLICY.max_tokens is not None
    assert 0 < len(texts(result)[0]) <= POLICY.max_tokens
    assert prose(LONG).startswith(texts(result)[0])


async def test_what_was_saved_is_told_net_of_what_was_read_later(agent: Agent, wire: Wire) -> None:
    async def told() -> dict[str, int]:
        return dict((await agent.call("cache_stats")).value["results"])

    before = await told()
    result = await call(agent, "t_prose", size=LONG)
    page = await agent.call("result_read", {"cursor": kept(result)["cursor"]})
    after = await told()
    assert after["previewed"] - before["previewed"] == 1
    assert after["read_later_tokens"] - before["read_later_tokens"] >= page.value["tokens"]
    assert after["saved_tokens"] == (
        after["had_tokens"] - after["delivered_tokens"] - after["read_later_tokens"]
    )
    expected = kept(result)["tokens"] - kept(result)["delivered_tokens"] - page.value["tokens"]
    assert abs(after["saved_tokens"] - before["saved_tokens"] - expected) < 300
    metrics = (await wire.http.get("/metrics")).text
    assert 'cwm_result_tokens_total{part="read_later"}' in metrics
    assert "cwm_result_tokens_saved" in metrics


async def test_what_is_read_as_a_resource_is_read_later_too(fronted: Fronted, agent: Agent) -> None:
    savings = fronted.gateway.parts.services.delivery.savings.of(agent.tenant)
    told = kept(await call(agent, "t_mixed", size=LONG))
    for part, tokens in (("", told["tokens"]), ("/1", 1_600)):
        before, had = savings.read_later, savings.had
        await agent.client.read_resource(f"cwm://results/{told['handle']}{part}")
        assert savings.read_later - before == pytest.approx(tokens, rel=0.02)
        assert savings.had == had
    before = savings.read_later
    fronted.configure(replace(BUDGETS, enabled=False))
    await agent.client.read_resource(f"cwm://results/{told['handle']}")
    assert savings.read_later == before


async def test_what_is_read_as_a_resource_fills_the_agents_window(fronted: Fronted) -> None:
    fronted.configure(replace(BUDGETS, window_tokens=40_000, window_share=0.05))
    async with fastmcp_agent(fronted.gateway.url, "legacy") as agent:
        assert is_whole(await call(agent, "t_prose", size=5_000))
        handle = kept(await call(agent, "t_prose", size=2 * LONG))["handle"]
        assert is_whole(await call(agent, "t_prose", size=5_000))
        await agent.client.read_resource(f"cwm://results/{handle}")
        assert not is_whole(await call(agent, "t_prose", size=5_000))


REFERRING = ToolPolicies(POLICY, {"t_take": replace(POLICY, references=True)})


@pytest.fixture
def referring(fronted: Fronted) -> Fronted:
    """``t_take`` takes by-reference arguments, and no other tool."""
    fronted.configure(replace(BUDGETS, policies=REFERRING))
    return fronted


async def test_a_stored_text_goes_into_another_call_without_being_read(
    referring: Fronted, agent: Agent
) -> None:
    handle = kept(await call(agent, "t_prose", size=LONG))["handle"]
    assert texts(await call(agent, "t_take", value={"$cwm": f"{handle}#"})) == ["taken"]
    assert referring.given.values == [prose(LONG)]


async def test_a_reference_anywhere_in_the_arguments_is_replaced_by_what_its_pointer_leads_to(
    referring: Fronted, agent: Agent
) -> None:
    handle = kept(await call(agent, "t_rows", count=300))["handle"]
    await call(
        agent,
        "t_take",
        value={"first": {"$cwm": f"{handle}#/rows/0"}, "name": {"$cwm": f"{handle}/0#/rows/299/name"}},
        more=[{"$cwm": f"cwm://results/{handle}#/total"}, "plain"],
    )
    first, last = rows(300)["rows"][0], rows(300)["rows"][-1]
    assert referring.given.values == [[{"first": first, "name": last["name"]}, 300, "plain"]]


async def test_our_own_tools_take_references_before_their_arguments_are_checked(
    fronted: Fronted, agent: Agent
) -> None:
    by_name = {"window_list": ToolPolicy(references=True)}
    fronted.configure(replace(BUDGETS, policies=ToolPolicies(POLICY, by_name)))
    handle = kept(await call(agent, "t_rows", count=300))["handle"]
    found = await agent.call(
        "window_list",
        {"search": {"$cwm": f"{handle}#/rows/0/name"}, "limit": {"$cwm": f"{handle}#/rows/1/id"}},
    )
    assert found.value["windows"] == []


async def refused(agent: Agent, value: Any, tool: str = "t_take") -> dict[str, Any]:
    answer = await agent.call(tool, {"value": value} if tool == "t_take" else {"size": value})
    return answer.error


async def test_only_tools_that_policy_lists_take_references(referring: Fronted, agent: Agent) -> None:
    handle = kept(await call(agent, "t_prose", size=LONG))["handle"]
    error = await refused(agent, {"$cwm": f"{handle}#"}, "t_fail")
    assert error["code"] == "CWM-1003"
    assert "tools.t_fail.references: true in cwm.yaml" in error["message"]
    off = replace(BUDGETS.references, enabled=False)
    referring.configure(replace(BUDGETS, policies=REFERRING, references=off))
    assert "switched off" in (await refused(agent, {"$cwm": f"{handle}#"}))["message"]
    assert referring.given.values == []


@pytest.mark.parametrize(
    "value",
    [
        {"$cwm": 5},
        {"$cwm": ""},
        {"$cwm": "r_x#no-pointer"},
        {"$cwm": "https://elsewhere/r_x#"},
        {"$cwm": "r_x#", "and": "more"},
        {"deep": [{"$cwm": None}]},
        {"$cwm": "r_x#" + "/a" * 2_000},
    ],
)
async def test_what_is_meant_as_a_reference_and_is_none_is_refused(
    referring: Fronted, agent: Agent, value: Any
) -> None:
    error = await refused(agent, value)
    assert error["code"] == "CWM-1003"
    assert error["context"]["field"].startswith("value")
    assert referring.given.values == []


async def test_a_reference_opens_for_those_only_who_may_read_the_result(
    referring: Fronted, agent: Agent
) -> None:
    handle = kept(await call(agent, "t_prose", size=LONG))["handle"]
    async with fastmcp_agent(referring.gateway.url, MODERN) as stranger:
        theirs = await refused(stranger, {"$cwm": f"{handle}#"})
    unknown = await refused(agent, {"$cwm": "r_" + "0" * 22 + "#"})
    assert theirs == unknown
    assert unknown["code"] == "CWM-2005"


async def test_a_pointer_that_leads_nowhere_is_refused(referring: Fronted, agent: Agent) -> None:
    handle = kept(await call(agent, "t_rows", count=300))["handle"]
    assert (await refused(agent, {"$cwm": f"{handle}#/rows/300"}))["code"] == "CWM-1003"


async def test_references_are_bounded_in_number_and_bytes(referring: Fronted, agent: Agent) -> None:
    handle = kept(await call(agent, "t_prose", size=LONG))["handle"]
    reference = {"$cwm": f"{handle}#"}
    bounds = replace(BUDGETS.references, most=2, most_bytes=3 * LONG)
    referring.configure(replace(BUDGETS, policies=REFERRING, references=bounds))
    assert texts(await call(agent, "t_take", value=[reference] * 2)) == ["taken"]
    assert "at most 2" in (await refused(agent, [reference] * 3))["message"]
    bounds = replace(bounds, most_bytes=LONG)
    referring.configure(replace(BUDGETS, policies=REFERRING, references=bounds))
    assert f"{LONG:,} bytes" in (await refused(agent, [reference] * 2))["message"]


async def test_a_reference_is_in_the_audit_log_without_its_value(referring: Fronted, agent: Agent) -> None:
    handle = kept(await call(agent, "t_prose", size=LONG))["handle"]
    await call(agent, "t_take", value={"$cwm": f"{handle}#"})
    await refused(agent, {"$cwm": "r_" + "0" * 22})
    events = await referring.gateway.parts.base.audit.events(agent.tenant, 10)
    wrong, used = [event for event in events if event.event == "result_reference"]
    assert (used.outcome, wrong.outcome) == ("success", "CWM-2005")
    size = len(json.dumps(prose(LONG), ensure_ascii=False).encode())
    assert used.details == {"tool": "t_take", "handles": [handle], "references": 1, "bytes": size}
    assert "Zürich" not in str(events)


async def test_arguments_without_references_pass_as_they_are(fronted: Fronted, agent: Agent) -> None:
    value = {"cwm": "$cwm", "list": ["$cwm", {"x": "r_x#"}], "unique": uuid4().hex}
    assert texts(await call(agent, "t_take", value=value)) == ["taken"]
    assert fronted.given.values == [value]
