"""Upstream servers behind the gateway: names, results, sessions, and what happens when they go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client as FastMcpClient
from fastmcp import FastMCP
from fastmcp.exceptions import McpError
from fastmcp.tools import ToolResult
from mcp_types import PromptReference

from cwm.domain.principal import Principal
from cwm.domain.upstream import Credentials, Override, Selection, UpstreamSpec
from cwm.services.upstreams.agent_links import links_of
from cwm.services.upstreams.link import LinkState
from tests.eventually import eventually
from tests.transport.mcp.gateway import LEGACY, MODERN, Agent, Gateway, fastmcp_agent, gateway
from tests.transport.mcp.upstream_hosts import Host, hosted, stdio_spec
from tests.transport.mcp.wire import LIST, EventStream, Wire, wired

pytestmark = pytest.mark.slow

AGENT = Principal("acme", "agent")
ERAS = pytest.mark.parametrize("upstream_era", [LEGACY, MODERN])


@pytest.fixture
async def host(upstream_era: str) -> AsyncIterator[Host]:
    async with hosted(legacy=upstream_era == LEGACY) as one:
        yield one


@asynccontextmanager
async def fronted(tmp_path: Path, era: str, *specs: UpstreamSpec) -> AsyncIterator[tuple[Agent, Gateway]]:
    async with gateway(tmp_path, upstreams=specs) as running, fastmcp_agent(running.url, era) as agent:
        yield agent, running


async def names(agent: Agent) -> set[str]:
    return {tool.name for tool in await agent.client.list_tools()}


@ERAS
async def test_tools_appear_under_the_upstreams_name_and_answer(tmp_path: Path, era: str, host: Host) -> None:
    async with fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        assert {"notes_echo", "notes_count", "session_create"} <= await names(agent)
        answer = await agent.call("notes_echo", {"message": "hi"})
        assert (answer.text, answer.value) == ("hi", {"result": "hi"})
        assert host.seen.calls["echo"] == 1


@ERAS
async def test_resources_templates_and_prompts_appear_and_can_be_read(
    tmp_path: Path, era: str, host: Host
) -> None:
    async with fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        client: FastMcpClient[Any] = agent.client
        assert "notes://notes/today" in {str(r.uri) for r in await client.list_resources()}
        templates = {t.uri_template for t in await client.list_resource_templates()}
        assert "notes://notes/on/{day}" in templates
        read = (await client.read_resource("notes://notes/on/monday"))[0]
        assert (read.text, str(read.uri)) == ("on monday", "notes://notes/on/monday")  # type: ignore[union-attr]
        assert "notes_greet" in {p.name for p in await client.list_prompts()}
        greeted = await client.get_prompt("notes_greet", {"name": "Ada"})
        assert greeted.messages[0].content.text == "Hello, Ada."  # type: ignore[union-attr]


async def test_no_spelling_of_a_uri_reads_what_is_not_allowed_or_is_denied(tmp_path: Path, era: str) -> None:
    def files(server: FastMCP[Any]) -> None:
        @server.resource("file:///srv/{path*}")
        def read(path: str) -> str:
            return f"what is in {path}"

    public = Selection(allow=("file:///srv/public/*",))
    not_private = Selection(deny=("file:///srv/private/*",))
    async with hosted(legacy=True, extend=files) as host:
        specs = [host.spec("a", resources=public), host.spec("d", resources=not_private)]
        async with fronted(tmp_path, era, *specs) as (agent, _):
            for upstream in ("a", "d"):
                read = await agent.client.read_resource(f"file://{upstream}//srv/public/k%20k")
                assert read[0].text.startswith("what is in public/k")
            with pytest.raises(McpError) as unknown:
                await agent.client.read_resource("file://nobody//srv/k")
            for uri in (
                "file://a//srv/public/../private/k",
                "file://a//srv/public/%2e%2e/private/k",
                "file://d//srv/public/../private/k",
                "file://d//srv/%70rivate/k",
                "FILE://d//srv/private/k",
                "file://d/localhost/srv/private/k",
            ):
                with pytest.raises(McpError) as refused:
                    await agent.client.read_resource(uri)
                assert refused.value.error.code == unknown.value.error.code
                assert "what is in" not in str(refused.value)


@ERAS
async def test_links_in_results_can_be_read_through_the_gateway(tmp_path: Path, era: str, host: Host) -> None:
    async with fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        result = await agent.client.call_tool_mcp("notes_link", {})
        assert str(result.content[1].uri) == "notes://notes/today"
        assert (await agent.client.read_resource(result.content[1].uri))[0].text == "milk"


@ERAS
async def test_an_upstreams_own_failure_reaches_the_caller_as_it_is(
    tmp_path: Path, era: str, host: Host
) -> None:
    async with fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        answer = await agent.call("notes_fail")
        assert (answer.is_error, answer.text) == (True, "I can not.")
        assert (await agent.call("notes_echo", {"message": 5})).is_error


async def test_a_result_says_what_the_upstream_adds_but_nothing_of_its_connection_and_nothing_in_cwms_name(
    tmp_path: Path, era: str
) -> None:
    def extend(server: FastMCP[Any]) -> None:
        @server.tool
        def marked() -> ToolResult:
            ours = {"dev.cwm/error": {"code": "CWM-4001"}, "dev.cwm/shared": {"age_seconds": 0}}
            return ToolResult(content="marked", meta={"org.notes/own": 1, **ours})

    async with (
        hosted(legacy=False, extend=extend) as host,
        fronted(tmp_path, era, host.spec("notes")) as (agent, _),
    ):
        client: FastMcpClient[Any] = agent.client
        marked = await client.call_tool_mcp("notes_marked", {})
        read = await client.read_resource_mcp("notes://notes/today")
        prompt = await client.get_prompt_mcp("notes_greet", {"name": "Ada"})
        completed = await client.complete_mcp(
            PromptReference(name="notes_greet"), {"name": "name", "value": "A"}
        )
    for answer in (marked, read, prompt, completed):
        named = (answer.meta or {}).get("io.modelcontextprotocol/serverInfo")
        assert (named and named["name"]) == ("cwm" if era == MODERN else None)
    assert marked.meta is not None
    assert marked.meta["org.notes/own"] == 1
    assert not [name for name in marked.meta if name.startswith("dev.cwm/")]


@ERAS
async def test_progress_is_passed_on(tmp_path: Path, era: str, host: Host) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        await agent.client.call_tool("notes_told", {}, progress_handler=heard)
    assert told == [(1, 2, "step 1"), (2, 2, "step 2")]


async def test_progress_of_a_program_reaches_each_call_that_asked(tmp_path: Path, era: str) -> None:
    told: list[list[float]] = [[], []]
    async with fronted(tmp_path, era, stdio_spec("program")) as (agent, _):
        for each in told:

            async def heard(progress: float, *_: Any, to: list[float] = each) -> None:
                to.append(progress)

            await agent.client.call_tool("program_told", {}, progress_handler=heard)
    assert told == [[1, 2], [1, 2]]


@ERAS
async def test_what_is_denied_does_not_appear_and_cannot_be_called(
    tmp_path: Path, era: str, host: Host
) -> None:
    spec = host.spec(
        "notes",
        tools=Selection(
            allow=("e*", "count", "hold"),
            deny=("hold",),
            override={"echo": Override(name="say", description="Speak.")},
        ),
        resources=Selection(deny=("notes://on/*",)),
        prompts=Selection(allow=()),
    )
    async with fronted(tmp_path, era, spec) as (agent, _):
        shown = {t.name: t for t in await agent.client.list_tools() if t.name.startswith("notes_")}
        assert shown.keys() == {"notes_say", "notes_count"}
        assert shown["notes_say"].description == "Speak."
        assert (await agent.call("notes_say", {"message": "hi"})).text == "hi"
        for denied in ("notes_hold", "notes_echo"):
            with pytest.raises(McpError, match="Unknown tool"):
                await agent.client.call_tool_mcp(denied, {"message": "hi"})
        with pytest.raises(McpError):
            await agent.client.read_resource("notes://notes/on/monday")
        assert "notes_greet" not in {p.name for p in await agent.client.list_prompts()}


async def test_each_mcp_session_has_its_own_session_with_a_stateful_upstream(tmp_path: Path) -> None:
    async with hosted(legacy=True) as host, gateway(tmp_path, upstreams=[host.spec("notes")]) as running:
        async with fastmcp_agent(running.url, LEGACY) as one, fastmcp_agent(running.url, LEGACY) as other:
            counted = [(await agent.call("notes_count")).text for agent in (one, one, other, one, other)]
        assert counted == ["1", "2", "1", "3", "2"]


async def test_a_stateless_upstream_is_shared_by_all(tmp_path: Path) -> None:
    async with (
        hosted(legacy=True) as host,
        gateway(tmp_path, upstreams=[host.spec("notes", stateless=True)]) as running,
        fastmcp_agent(running.url, LEGACY) as one,
        fastmcp_agent(running.url, MODERN) as other,
    ):
        counted = [(await agent.call("notes_count")).text for agent in (one, other, one)]
    assert counted == ["1", "2", "3"]


async def test_later_clients_keep_agents_apart_by_a_handle(tmp_path: Path) -> None:
    async with (
        hosted(legacy=True) as host,
        gateway(tmp_path, upstreams=[host.spec("notes")]) as running,
        fastmcp_agent(running.url, MODERN) as agent,
        fastmcp_agent(running.url, MODERN) as foreign,
    ):
        tool = next(t for t in await agent.client.list_tools() if t.name == "notes_count")
        assert "agent_session" in tool.input_schema["properties"]
        one, two = [(await agent.call("agent_session_create")).value["agent_session"] for _ in range(2)]
        counted = [
            (await agent.call("notes_count", arguments)).text
            for arguments in ({"agent_session": one}, {"agent_session": two}, {}, {"agent_session": one}, {})
        ]
        assert counted == ["1", "1", "1", "2", "2"]
        by_meta = await agent.client.call_tool_mcp("notes_count", {}, meta={"dev.cwm/agent-session": two})
        assert by_meta.content[0].text == "2"
        unknown = (await foreign.call("notes_count", {"agent_session": one})).error
        assert unknown["code"] == "CWM-2004"
        assert (await foreign.call("agent_session_end", {"agent_session": one})).error == unknown
        assert not (await agent.call("agent_session_end", {"agent_session": one})).is_error
        assert (await agent.call("notes_count", {"agent_session": one})).error == unknown


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_a_restarted_upstream_is_greeted_again_and_nobody_notices(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=True) as host, fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        assert (await agent.call("notes_count")).text == "1"
        await host.stop()
        await host.start()
        # Not safe to repeat, but the new server cannot have seen it before: it refused the session.
        assert (await agent.call("notes_count")).text == "1"


@pytest.mark.parametrize(("tool", "code"), [("notes_hold", "CWM-5004"), ("notes_look", None)])
async def test_a_call_that_was_cut_off_is_repeated_only_where_that_is_safe(
    tmp_path: Path, era: str, tool: str, code: str | None
) -> None:
    async with hosted(legacy=True) as host, fronted(tmp_path, era, host.spec("notes")) as (agent, _):
        calling = asyncio.create_task(agent.call(tool))
        await host.seen.began.wait()
        await host.stop()
        await host.start()
        answer = await calling
        if code is None:
            assert answer.text == "looked"
            assert host.seen.calls["look"] == 2
        else:
            assert (answer.error["code"], answer.error["retryable"]) == (code, False)
            assert host.seen.calls["hold"] == 1


async def test_a_dead_upstream_leaves_the_others_and_is_named(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=False) as dead, hosted(legacy=False) as alive:
        await dead.stop()
        specs = (dead.spec("dead", connect_seconds=5), alive.spec("alive"), stdio_spec("program"))
        async with fronted(tmp_path, era, *specs) as (agent, running):
            listed = await agent.client.list_tools_mcp()
            assert {"alive_echo", "program_echo", "window_list"} <= {t.name for t in listed.tools}
            assert not any(t.name.startswith("dead_") for t in listed.tools)
            assert listed.meta is not None
            assert listed.meta["dev.cwm/absent"].keys() == {"dead"}
            health = (await agent.call("health_check")).value
            told = {c["name"]: c["status"] for c in health["components"]}
            assert (told["upstream:dead"], told["upstream:alive"]) == ("degraded", "healthy")
            error = (await agent.call("dead_echo", {"message": "hi"})).error
            assert (error["code"], error["retryable"]) == ("CWM-5003", True)
            assert error["context"]["upstream"] == "dead"
            await dead.start()
            link = running.parts.agent_side.upstreams._links["dead"]
            await eventually(lambda: link.state is LinkState.READY)
            assert "dead_echo" in await names(agent)


async def test_health_counts_no_tools_of_an_upstream_that_offers_each_caller_its_own(
    tmp_path: Path, era: str
) -> None:
    async with (
        hosted(legacy=True) as host,
        fronted(tmp_path, era, host.spec("notes", credentials=Credentials.FORWARD)) as (agent, _),
    ):
        assert "notes_echo" in await names(agent)
        components = (await agent.call("health_check")).value["components"]
        (told,) = [each for each in components if each["name"] == "upstream:notes"]
        assert (told["status"], told["message"]) == ("healthy", "what it offers depends on who calls")


async def test_every_list_names_the_upstreams_that_are_missing_from_it(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=False) as dead, hosted(legacy=False) as alive:
        await dead.stop()
        async with fronted(tmp_path, era, dead.spec("dead"), alive.spec("alive")) as (agent, _):
            client: FastMcpClient[Any] = agent.client
            resources = await client.list_resources_mcp()
            templates = await client.list_resource_templates_mcp()
            prompts = await client.list_prompts_mcp()
    assert "notes://alive/today" in {str(each.uri) for each in resources.resources}
    assert "notes://alive/on/{day}" in {each.uri_template for each in templates.resource_templates}
    assert "alive_greet" in {each.name for each in prompts.prompts}
    for listed in (resources, templates, prompts):
        assert listed.meta is not None
        assert listed.meta["dev.cwm/absent"].keys() == {"dead"}
        assert listed.meta["dev.cwm/absent"]["dead"]


async def test_a_program_runs_once_for_each_agent_session_and_ends_with_it(tmp_path: Path) -> None:
    async with gateway(tmp_path, upstreams=[stdio_spec("program")]) as running:
        async with fastmcp_agent(running.url, LEGACY) as one:
            async with fastmcp_agent(running.url, LEGACY) as other:
                pids = [int((await a.call("program_process")).text) for a in (one, other, one)]
            assert pids[0] == pids[2] != pids[1]
            await eventually(lambda: not alive(pids[1]))
            assert alive(pids[0])
        kept = int(await _pid_of_catalogue(running))
    assert not alive(pids[0])
    assert not alive(kept)


async def test_a_crashed_program_is_started_again(tmp_path: Path, era: str) -> None:
    async with fronted(tmp_path, era, stdio_spec("program")) as (agent, _):
        first = (await agent.call("program_process")).text
        assert (await agent.call("program_die")).error["code"] == "CWM-5004"
        assert (await agent.call("program_process")).text != first


async def test_reconfiguring_lets_calls_end_where_they_began(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=True) as host, fronted(tmp_path, era, host.spec("notes")) as (agent, running):
        holding = asyncio.create_task(agent.call("notes_hold"))
        await host.seen.began.wait()
        await running.parts.agent_side.upstreams.configure([host.spec("renamed")])
        link = running.parts.agent_side.upstreams._links["renamed"]
        await link.settled()
        assert not {"notes_hold"} & await names(agent)
        assert "renamed_hold" in await names(agent)
        host.seen.go_on.set()
        assert (await holding).text == "held"


async def test_clients_hear_that_an_upstreams_tools_changed(tmp_path: Path) -> None:
    """In both eras, and also when the upstream is configured anew."""
    async with (
        hosted(legacy=True) as host,
        gateway(tmp_path, upstreams=[host.spec("notes")]) as running,
        wired(running.url) as wire,
    ):
        session = await wire.session()
        assert (await wire.post(LIST, mcp_session_id=session)).status_code == 200
        async with wire.stream(session) as stream, wire.listen({"toolsListChanged": True}) as listening:
            called = {"name": "notes_grow", "arguments": {}}
            assert (await wire.ask(session, "tools/call", **called)).status_code == 200
            await asyncio.gather(*(told_of_tools(each) for each in (stream, listening)))
            assert "notes_grown" in (await wire.post(LIST, mcp_session_id=session)).text
            await running.parts.agent_side.upstreams.configure([])
            await asyncio.gather(*(told_of_tools(each) for each in (stream, listening)))
            assert "notes_" not in (await wire.post(LIST, mcp_session_id=session)).text


@asynccontextmanager
async def notes_behind(tmp_path: Path, *, stateless: bool) -> AsyncIterator[tuple[Host, Gateway, Wire]]:
    """A server that can be stopped, a gateway in front of it, and a client's wire."""
    async with (
        hosted(legacy=True) as host,
        gateway(tmp_path, upstreams=[host.spec("notes", stateless=stateless)]) as running,
        wired(running.url) as wire,
    ):
        yield host, running, wire


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_subscription_to_an_upstreams_resource_outlives_other_listeners_and_the_upstreams_restart(
    tmp_path: Path, stateless: bool
) -> None:
    uri = "notes://notes/today"
    async with notes_behind(tmp_path, stateless=stateless) as (host, _, wire):
        one, other = await wire.session(), await wire.session()
        async with wire.stream(one) as stream:
            for session in (one, other):
                assert (await wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
            assert (await wire.ask(other, "resources/unsubscribe", uri=uri)).status_code == 200
            await touched(wire, one)
            await told_of(stream, uri)
            await host.stop()
            await host.start()
            # The restarted server knows of no subscription until it is asked again, and by a stream of its own.
            telling = asyncio.create_task(told_of(stream, uri))
            while not telling.done():
                await touched(wire, one)
            await telling


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_subscription_to_an_upstreams_resource_outlives_a_change_of_its_configuration(
    tmp_path: Path, stateless: bool
) -> None:
    uri = "notes://notes/today"
    async with notes_behind(tmp_path, stateless=stateless) as (host, running, wire):
        upstreams, session = running.parts.agent_side.upstreams, await wire.session()
        async with wire.stream(session) as stream:
            assert (await wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
            changed = host.spec("notes", stateless=stateless, call_seconds=200)
            await upstreams.configure([changed])
            await eventually(lambda: upstreams._links["notes"].spec == changed)
            # Nothing is asked of a stateful one by this session: its session there is opened all the same.
            agent = running.parts.agent_side.agents.held(AGENT, session)
            assert agent is not None
            link = upstreams._links["notes"]
            await eventually(lambda: stateless or links_of(agent).opened(link) is not None)
            telling = asyncio.create_task(told_of(stream, uri))
            while not telling.done():
                await touched(wire, session)
            await telling


@asynccontextmanager
async def only_listening(
    running: Gateway, wire: Wire, whose: str, uri: str
) -> AsyncIterator[tuple[str | None, EventStream]]:
    """A stream that hears of ``uri``, and the agent session that it belongs to."""
    if whose == "session":
        session = await wire.session()
        assert (await wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
        async with wire.stream(session) as stream:
            yield session, stream
    else:
        handle = await running.sessions.begin(AGENT) if whose == "handle" else None
        async with wire.listen({"resourceSubscriptions": [uri]}, handle) as stream:
            yield handle, stream


@pytest.mark.parametrize("whose", ["session", "handle", "principal"])
async def test_who_only_listens_hears_of_a_shared_upstreams_resource_for_as_long_as_the_stream_is_open(
    tmp_path: Path, whose: str
) -> None:
    uri = "notes://notes/today"
    async with (
        hosted(legacy=True) as host,
        gateway(tmp_path, upstreams=[host.spec("notes", stateless=True)]) as running,
        wired(running.url) as wire,
    ):
        running.face.streams._keepalive_seconds = running.face.subscriptions.keepalive_seconds = 0.01
        agents, other = running.parts.agent_side.agents, await wire.session()
        async with only_listening(running, wire, whose, uri) as (agent_session, stream):
            held = agents.held(AGENT, agent_session)
            assert held is not None
            used, kept = held.last_used, running.sessions._sessions.get(held.key)
            kept_at = kept.used_at if kept else 0.0
            await eventually(lambda: held.last_used > used and (not kept or kept.used_at > kept_at))
            # What was not used since then has been idle for too long.
            agents.ttl_seconds = time.monotonic() - used
            agents.close_idle()
            assert agents.held(AGENT, agent_session) is held
            agents.ttl_seconds = 60
            await touched(wire, other)
            await told_of(stream, uri)


async def test_a_change_of_a_part_is_reported_to_who_subscribed_to_the_whole(tmp_path: Path) -> None:
    uri = "notes://notes/today"
    async with notes_behind(tmp_path, stateless=False) as (_, _, wire):
        session = await wire.session()
        async with wire.stream(session) as stream:
            assert (await wire.ask(session, "resources/subscribe", uri=uri)).status_code == 200
            await touched(wire, session, "/morning")
            await told_of(stream, uri)


async def touched(wire: Wire, session: str, part: str = "") -> None:
    answer = await wire.ask(session, "tools/call", name="notes_touch", arguments={"part": part})
    assert "touched" in answer.text


async def told_of(stream: EventStream, uri: str) -> None:
    while (message := await stream.message())["method"] != "notifications/resources/updated":
        pass
    assert message["params"]["uri"] == uri


async def told_of_tools(stream: EventStream) -> None:
    while (await stream.message())["method"] != "notifications/tools/list_changed":
        pass


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def _pid_of_catalogue(running: Gateway) -> str:
    session = running.parts.agent_side.upstreams._links["program"].session
    assert session is not None
    answer = await session.request("tools/call", {"name": "process", "arguments": {}}, timeout_seconds=10)
    return str(answer["content"][0]["text"])
