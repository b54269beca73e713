"""What an agent may use is what it sees; the rest is refused with a code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import MCPError
from mcp_types import TextContent

from cwm.cli.demo.gateway import RunningGateway
from cwm.domain.access import granted
from cwm.domain.upstream import Credentials
from cwm.settings import Database, Isolation, Settings
from cwm.transport.mcp.requests.permissions import ADMIN, TOOLS, of_resource
from cwm.wiring.parts import build_parts
from tests.transport.http.secured import a_key, http, initialize, secured
from tests.transport.mcp.gateway import LEGACY, MODERN, faced
from tests.transport.mcp.upstream_hosts import hosted, stdio_spec

ERAS = pytest.mark.parametrize("era", [LEGACY, MODERN])
FREE = {"agent_session_create", "agent_session_end", "result_read", "result_query", "health_check"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with secured(tmp_path, upstreams=[stdio_spec("docs")]) as gateway:
        yield gateway


@asynccontextmanager
async def agent(running: RunningGateway, era: str, *scopes: str) -> AsyncIterator[Client[Any]]:
    key = await a_key(running, *scopes)
    transport = StreamableHttpTransport(f"{running.url}/mcp", auth=key)
    async with Client(transport, mode=era) as client:
        yield client


async def test_every_tool_and_resource_of_ours_has_been_given_its_scopes(tmp_path: Path) -> None:
    settings = Settings(
        database=Database(db_path=tmp_path / "cwm.db"), isolation=Isolation(secret="a test's secret")
    )
    parts = build_parts(settings)
    async with parts.close():
        face = faced(parts)
        assert {tool.name for tool in await face._list_tools()} == set(TOOLS)
        uris = [str(each.uri) for each in await face._list_resources()]
        uris += [each.uri_template for each in await face._list_resource_templates()]
        assert all(of_resource(uri) <= granted(["windows:*", "context:*"]) for uri in uris), uris


@pytest.mark.parametrize(
    ("uri", "scopes"),
    [
        ("cwm://windows", {"windows:read"}),
        ("CWM://windows", {"windows:read"}),
        ("cwm://windowsill", {"admin"}),
        ("cwm://windows?cursor=abc", {"windows:read"}),
        ("cwm://context/tenant/a", {"context:read"}),
        ("cwm://results/abc/0", set()),
        ("cwm://new", {"admin"}),
        ("docs://page", {"tools:call"}),
    ],
)
def test_a_resource_that_nobody_thought_of_is_for_admins(uri: str, scopes: set[str]) -> None:
    assert of_resource(uri) == scopes


@pytest.mark.slow
@ERAS
async def test_a_reader_sees_what_it_may_read_and_nothing_else(running: RunningGateway, era: str) -> None:
    async with agent(running, era, "windows:read") as reader:
        assert {tool.name for tool in await reader.list_tools()} == FREE | {
            "window_list",
            "window_status",
            "session_list",
            "turn_log",
            "turn_show",
            "turn_search",
            "turn_diff",
            "turn_left_out",
            "cache_stats",
        }
        assert {str(each.uri) for each in await reader.list_resources()} == {
            "cwm://windows",
            "cwm://sessions",
            "cwm://stats",
            "health://status",
        }
        templates = {each.uri_template for each in await reader.list_resource_templates()}
        assert templates == {
            "cwm://windows{?cursor}",
            "cwm://sessions{?cursor}",
            "cwm://turns/{turn}",
            "cwm://results/{handle}",
            "cwm://results/{handle}/{part}",
        }
        listed = await reader.call_tool("window_list", {})
        assert not listed.is_error


@pytest.mark.slow
@ERAS
async def test_a_tool_out_of_reach_is_refused_with_the_scopes_it_needs(
    running: RunningGateway, era: str
) -> None:
    async with agent(running, era, "windows:read") as reader:
        for tool, needed in (
            ("window_thaw", ["windows:read", "sessions:write"]),
            ("window_delete", ["windows:write"]),
            ("context_get", ["context:read"]),
            ("get_metrics_data", ["admin"]),
            ("session_move", ["admin"]),
            ("docs_echo", ["tools:call"]),
            ("docs_there_is_no_such", ["tools:call"]),
        ):
            # Its arguments are nobody's business either.
            refused = await reader.call_tool_mcp(tool, {"nonsense": True})
            assert refused.is_error
            assert isinstance(refused.content[0], TextContent)
            told = json.loads(refused.content[0].text)
            assert (told["code"], told["context"]["required"]) == ("CWM-9002", needed), tool
        with pytest.raises(MCPError, match="Unknown tool"):
            await reader.call_tool_mcp("there_is_no_such", {})
        denied = [
            e
            for e in await running.parts.base.audit.events("acme", 50)
            if e.event == "security.access_denied"
        ]
        assert {e.details["where"] for e in denied} >= {"window_thaw", "docs_echo"}
        assert {e.subject for e in denied} == {"key:ci"}


@pytest.mark.slow
@ERAS
async def test_resources_out_of_reach_are_neither_read_nor_heard_of(
    running: RunningGateway, era: str
) -> None:
    async with agent(running, era, "windows:read") as reader:
        for uri in ("cwm://context/tenant/a", "upstream+docs://x", "cwm://nothing"):
            with pytest.raises(MCPError):
                await reader.read_resource(uri)
        await reader.read_resource("cwm://windows")
    async with agent(running, era, "context:read") as other:
        with pytest.raises(MCPError, match="windows:read"):
            await other.read_resource("cwm://windows")


@pytest.mark.slow
@ERAS
async def test_upstreams_are_for_those_who_may_call_tools(running: RunningGateway, era: str) -> None:
    async with agent(running, era, "tools:call") as caller:
        tools = {tool.name for tool in await caller.list_tools()}
        assert any(name.startswith("docs_") for name in tools)
        assert tools & set(TOOLS) == FREE
    async with agent(running, era, "windows:*", "sessions:*", "context:*") as other:
        tools = {tool.name for tool in await other.list_tools()}
        assert not any(name.startswith("docs_") for name in tools)
        assert tools == {name for name, scopes in TOOLS.items() if scopes != ADMIN}
        assert not any("docs" in str(each.uri) for each in await other.list_resources())
        assert await other.list_prompts() == []


@pytest.mark.slow
@ERAS
async def test_an_agent_keeps_its_session_when_its_key_is_replaced(running: RunningGateway, era: str) -> None:
    """Two keys of one name are one principal, each with what it may do itself."""
    async with agent(running, era, "context:*") as first, agent(running, era, "context:read") as second:
        await first.call_tool("context_set", {"key": "a", "value": 1, "scope": "tenant"})
        read = await second.call_tool("context_get", {"key": "a", "scope": "tenant"})
        assert read.structured_content is not None
        assert read.structured_content["value"] == 1
        assert (await second.call_tool_mcp("context_set", {"key": "a", "value": 2})).is_error


@pytest.mark.slow
async def test_anothers_session_does_not_exist(running: RunningGateway) -> None:
    mine = await a_key(running, "windows:read", name="mine")
    same, other = await a_key(running, "admin", name="mine"), await a_key(running, "admin", name="other")
    elsewhere = await a_key(running, "admin", name="mine", tenant="other")
    async with http(running, mine) as client:
        session = (await client.post("/mcp", **initialize())).headers["mcp-session-id"]
    headers = {"mcp-session-id": session, "accept": "application/json, text/event-stream"}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    for key, status in ((mine, 200), (same, 200), (other, 404), (elsewhere, 404)):
        async with http(running, key) as client:
            assert (await client.post("/mcp", json=ping, headers=headers)).status_code == status


@pytest.mark.slow
async def test_an_api_key_is_never_shown_to_an_upstream(tmp_path: Path) -> None:
    async with (
        hosted(legacy=False) as host,
        secured(tmp_path, upstreams=[host.spec("web", credentials=Credentials.FORWARD)]) as running,
        agent(running, MODERN, "tools:call") as caller,
    ):
        assert not (await caller.call_tool_mcp("web_whoami", {})).is_error
        assert host.seen.authorizations == [None]
