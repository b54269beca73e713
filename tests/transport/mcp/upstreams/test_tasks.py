"""Tasks of an upstream: called, looked at, read and cancelled by handles that outlive the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

from cwm.domain.budgets import Budgets
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from cwm.domain.upstream import Selection, UpstreamSpec
from cwm.settings import Tasks
from cwm.transport.mcp.results.preview_notes import META_KEY
from tests.node.programs import Programs
from tests.transport.mcp.gateway import Gateway, gateway
from tests.transport.mcp.task_upstream import RELATED, SUPPORT, TaskUpstream
from tests.transport.mcp.upstream_hosts import Host, hosted
from tests.transport.mcp.wire import Wire, wired

pytestmark = pytest.mark.slow

VERSION = "2025-11-25"


@dataclass(frozen=True, slots=True)
class Client:
    """One MCP session of a client of 2025-11-25."""

    wire: Wire
    session: str
    headers: dict[str, str]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 3, "method": method, "params": params}
        async with asyncio.timeout(20):
            answer = await self.wire.post(body, mcp_session_id=self.session, **self.headers)
        data = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
        return dict(json.loads(data[-1] if data else answer.text))

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return dict(answer["result"])

    async def error(self, method: str, **params: Any) -> dict[str, Any]:
        answer = await self.ask(method, **params)
        assert "error" in answer, answer
        return dict(answer["error"])

    async def begin(self, tool: str = "mine_dig", **task: Any) -> dict[str, Any]:
        """The state of a new task."""
        return dict((await self.result("tools/call", name=tool, arguments={}, task=task))["task"])

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {tool["name"]: tool for tool in (await self.result("tools/list"))["tools"]}


@asynccontextmanager
async def client(url: str, version: str = VERSION, **headers: str) -> AsyncIterator[Client]:
    async with wired(url) as wire:
        begun = await wire.post(_initialize(version), **headers)
        session = begun.raise_for_status().headers["mcp-session-id"]
        yield Client(wire, session, {"mcp_protocol_version": version, **headers})


def _initialize(version: str) -> dict[str, Any]:
    info = {"name": "t", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@asynccontextmanager
async def mine(
    folder: Path, host: Host, *, spec: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Client, Gateway]]:
    specs = [host.spec("mine", **(spec or {}))]
    async with gateway(folder, upstreams=specs, **options) as running, client(running.url) as one:
        yield one, running


@pytest.fixture
def upstream() -> TaskUpstream:
    return TaskUpstream()


@pytest.fixture
async def host(upstream: TaskUpstream) -> AsyncIterator[Host]:
    async with hosted(legacy=True, extend=upstream.add_to) as one:
        yield one


async def test_a_task_is_begun_looked_at_and_read_under_a_handle(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, _):
        tools = await one.tools()
        assert {name: tools[f"mine_{name}"]["execution"] for name in SUPPORT} == {
            name: {"taskSupport": support} for name, support in SUPPORT.items()
        }
        answer = await one.result("tools/call", name="mine_dig", arguments={"depth": 3}, task={"ttl": 60_000})
        task = answer["task"]
        handle, own = task["taskId"], upstream.one.state
        assert handle != own["taskId"]
        assert task == {**own, "taskId": handle}
        assert answer["_meta"]["note"] == "begun"
        (begun,) = upstream.asked
        assert begun[1]["arguments"] == {"depth": 3}
        assert begun[1]["task"] == {"ttl": 60_000}
        assert await one.result("tasks/get", taskId=handle) == task
        link = {"type": "resource_link", "uri": "notes://today", "name": "today"}
        waiting = asyncio.create_task(one.result("tasks/result", taskId=handle))
        upstream.end({"content": [link], "structuredContent": {"kilos": 2}})
        read = await waiting
        assert read["content"] == [{**link, "uri": "notes://mine/today"}]
        assert read["structuredContent"] == {"kilos": 2}
        assert read["_meta"][RELATED] == {"taskId": handle}
        assert (await one.result("tasks/get", taskId=handle))["status"] == "completed"
        assert [each["taskId"] for each in (await one.result("tasks/list"))["tasks"]] == [handle]


async def test_a_task_with_an_endless_id_is_an_error_and_no_empty_result(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    upstream.id_chars = 1025
    async with mine(tmp_path, host) as (one, _):
        error = await one.error("tools/call", name="mine_dig", arguments={}, task={})
        assert "not valid MCP" in error["message"]
        assert (await one.result("tasks/list"))["tasks"] == []


async def test_a_task_is_cancelled_at_the_upstream(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, running):
        handle = (await one.begin())["taskId"]
        cancelled = await one.result("tasks/cancel", taskId=handle)
        assert (cancelled["taskId"], cancelled["status"]) == (handle, "cancelled")
        assert upstream.one.state["status"] == "cancelled"
        again = await one.error("tasks/cancel", taskId=handle)
        assert (again["code"], again["message"]) == (
            INVALID_PARAMS,
            f"Upstream mine: Task {handle} has ended",
        )
        events = [each for each in await running.parts.base.audit.events("acme", 10) if "task" in each.event]
        assert [(each.event, each.outcome, each.details) for each in reversed(events)] == [
            (event, "success", {"tool": "mine_dig", "task": handle})
            for event in ("upstream_task_create", "upstream_task_cancel")
        ]


@pytest.mark.parametrize("stateless", [False, True])
async def test_a_handle_outlives_the_gateway_and_the_session_that_began_it(
    tmp_path: Path, host: Host, upstream: TaskUpstream, stateless: bool
) -> None:
    spec = {"stateless": stateless}
    async with mine(tmp_path, host, spec=spec) as (one, _):
        handle = (await one.begin())["taskId"]
        if stateless:
            # A gateway's shared session ends with it: such an upstream binds nothing to it.
            upstream.one.session = None
    async with mine(tmp_path, host, spec=spec) as (one, _):
        assert (await one.result("tasks/get", taskId=handle))["status"] == "working"
        assert [each["taskId"] for each in (await one.result("tasks/list"))["tasks"]] == [handle]
    upstream.end()
    async with mine(tmp_path, host, spec=spec) as (one, _):
        assert (await one.result("tasks/result", taskId=handle))["content"][0]["text"] == "gold"


async def test_a_handle_reaches_the_task_from_another_gateway_on_the_same_registry(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, _), mine(tmp_path, host) as (other, _):
        handle = (await one.begin())["taskId"]
        assert (await other.result("tasks/cancel", taskId=handle))["status"] == "cancelled"
        assert (await one.result("tasks/get", taskId=handle))["status"] == "cancelled"


async def test_a_handle_is_unknown_to_everybody_else(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, running):
        handle = (await one.begin())["taskId"]
        upstream.end()
        asked = len(upstream.asked)
        unknown = await one.error("tasks/get", taskId="task_of-nobody")
        assert (unknown["code"], unknown["data"]["code"]) == (INVALID_PARAMS, "CWM-2010")
        for headers in ({"x_tenant": "rival"}, {"x_subject": "bob"}):
            async with client(running.url, **headers) as other:
                for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                    assert await other.error(method, taskId=handle) == unknown
                assert (await other.result("tasks/list"))["tasks"] == []
        assert len(upstream.asked) == asked
        events = {each.event for each in await running.parts.base.audit.events("acme", 20)}
        assert {"security.isolation_violation", "security.not_found"} <= events
        async with client(running.url, x_scopes="windows:read") as reader:
            assert (await reader.error("tasks/list"))["data"]["code"] == "CWM-9002"


async def test_a_result_over_its_budget_is_stored_and_previewed(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    policies = ToolPolicies(ToolPolicy(max_tokens=300, preview_tokens=200))
    async with mine(tmp_path, host, budgets=Budgets(policies=policies)) as (one, _):
        handle = (await one.begin())["taskId"]
        upstream.end({"content": [{"type": "text", "text": "a nugget\n" * 5_000}]})
        read = await one.result("tasks/result", taskId=handle)
        assert len(json.dumps(read)) < 10_000
        stored = read["_meta"][META_KEY]["handle"]
        page = await one.result(
            "tools/call", name="result_read", arguments={"handle": stored, "max_tokens": 64}
        )
        assert page["content"][0]["text"].startswith("a nugget\n")


async def test_the_open_tasks_of_a_user_are_bounded(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host, tasks=Tasks(upstream_tasks=2)) as (one, running):
        first, _ = [(await one.begin())["taskId"] for _ in range(2)]
        refused = await one.result("tools/call", name="mine_dig", arguments={}, task={})
        error = json.loads(refused["content"][0]["text"])
        assert (error["code"], error["context"]["limit"], len(upstream.tasks)) == ("CWM-7002", 2, 2)
        async with client(running.url, x_subject="bob") as bob:
            await bob.begin()
        await one.result("tasks/cancel", taskId=first)
        await one.begin()


async def test_a_task_lives_no_longer_than_the_gateway_allows(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host, tasks=Tasks(upstream_task_seconds=60)) as (one, running):
        task = await one.begin(ttl=3_600_000)
        assert (task["ttl"], upstream.one.state["ttl"]) == (60_000, 60_000)
        records = running.parts.agent_side.upstream_tasks.records
        (record,) = await records.of_owner("acme", "agent")
        assert (record.expires_at - record.created_at).total_seconds() == 60
        await records.forget_expired_of_every_tenant(record.expires_at)
        assert (await one.error("tasks/get", taskId=task["taskId"]))["data"]["code"] == "CWM-2010"


async def test_what_the_upstream_refuses_and_how_a_task_fails_is_said_under_the_handle(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, _):
        straight = await one.error("tools/call", name="mine_only_dig", arguments={})
        assert straight["message"] == "Upstream mine: Tool only_dig requires task augmentation"
        handle, own = (await one.begin("mine_only_dig"))["taskId"], upstream.one.state["taskId"]
        upstream.end(MCPError(INTERNAL_ERROR, f"{own} hit water"), "failed")
        failed = await one.error("tasks/result", taskId=handle)
        assert (failed["code"], failed["message"]) == (INTERNAL_ERROR, f"Upstream mine: {handle} hit water")
        upstream.tasks.clear()
        gone = await one.error("tasks/get", taskId=handle)
        assert gone["message"] == f"Upstream mine: Task {handle} not found"
        assert (await one.result("tasks/list"))["tasks"] == []


async def test_an_upstream_that_is_away_is_no_result_of_the_task(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, _):
        handle = (await one.begin())["taskId"]
        await host.stop()
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await one.error(method, taskId=handle))["data"]["code"] == "CWM-5003"
        (listed,) = (await one.result("tasks/list"))["tasks"]
        assert (listed["taskId"], listed["status"]) == (handle, "working")
        assert listed["statusMessage"].startswith("Upstream mine is not there")


async def test_a_question_within_a_task_is_refused_in_words(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, _):
        handle = (await one.begin("mine_ask"))["taskId"]
        read = await one.result("tasks/result", taskId=handle)
        assert read["isError"]
        assert "not supported" in read["content"][0]["text"]


async def test_only_tools_that_say_so_run_as_tasks_and_only_in_the_version_that_has_them(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, running):
        for name in ("window_list", "mine_echo"):
            refused = await one.error("tools/call", name=name, arguments={}, task={})
            assert refused["code"] == METHOD_NOT_FOUND
        async with client(running.url, "2025-06-18") as earlier:
            plain = await earlier.result("tools/call", name="mine_dig", arguments={}, task={})
            assert plain["content"][0]["text"] == "dug 1 straight"
            assert (await earlier.error("tasks/list"))["code"] == METHOD_NOT_FOUND
        async with wired(running.url) as wire:
            capabilities = [
                (await wire.post(_initialize(version))).text.partition("data: ")[2]
                for version in (VERSION, "2025-06-18")
            ]
        declared = [json.loads(each)["result"]["capabilities"].get("tasks") for each in capabilities]
        assert declared == [{"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}, None]


async def test_a_tool_of_an_upstream_that_declares_no_tasks_is_offered_as_an_ordinary_one(
    tmp_path: Path,
) -> None:
    async with (
        hosted(legacy=True, extend=TaskUpstream(declares=False).add_to) as host,
        mine(tmp_path, host) as (one, _),
    ):
        assert "execution" not in (await one.tools())["mine_dig"]


async def test_a_tool_that_is_denied_meanwhile_gives_no_result(
    tmp_path: Path, host: Host, upstream: TaskUpstream
) -> None:
    async with mine(tmp_path, host) as (one, _):
        handle = (await one.begin())["taskId"]
    upstream.end()
    async with mine(tmp_path, host, spec={"tools": Selection(deny=("dig",))}) as (one, _):
        assert (await one.error("tasks/result", taskId=handle))["message"] == "Unknown tool"
        assert (await one.result("tasks/get", taskId=handle))["status"] == "completed"


async def test_a_task_of_the_reference_server_ends_behind_a_gateway_that_was_started_anew(
    tmp_path: Path, programs: Programs
) -> None:
    async with programs.everything_over_http() as served:
        spec = UpstreamSpec("all", url=served.url, connect_seconds=60)
        async with gateway(tmp_path, upstreams=[spec]) as running, client(running.url) as one:
            assert (await one.tools())["all_simulate-research-query"]["execution"] == {
                "taskSupport": "required"
            }
            arguments = {"topic": "tides", "ambiguous": True}
            begun = await one.result(
                "tools/call", name="all_simulate-research-query", arguments=arguments, task={}
            )
            handle = begun["task"]["taskId"]
        async with gateway(tmp_path, upstreams=[spec]) as running, client(running.url) as one:
            assert (await one.result("tasks/get", taskId=handle))["status"] in {"working", "completed"}
            read = await one.result("tasks/result", taskId=handle)
            assert read["content"][0]["text"].startswith("# Research Report: tides")
            (listed,) = (await one.result("tasks/list"))["tasks"]
            assert (listed["taskId"], listed["status"]) == (handle, "completed")


async def test_a_client_of_the_typescript_sdk_runs_a_task_and_reads_it_again(
    tmp_path: Path, host: Host, upstream: TaskUpstream, programs: Programs
) -> None:
    upstream.at_once = True
    async with gateway(tmp_path, upstreams=[host.spec("mine")]) as running:
        ended = await programs.script("tasks.mjs", f"{running.url}/mcp", "mine_only_dig")
        assert ended.status == 0, ended.told
        seen = json.loads(ended.out)["seen"]
        assert [each["type"] for each in seen] == ["taskCreated", "taskStatus", "result"]
        assert seen[-1]["result"]["content"] == [{"type": "text", "text": "gold"}]
        handle = seen[0]["task"]["taskId"]
        again = await programs.script("tasks.mjs", f"{running.url}/mcp", handle)
        assert again.status == 0, again.told
        assert json.loads(again.out)["seen"] == [seen[-1]]
