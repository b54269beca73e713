"""``cwm stdio`` in a process of its own, with real clients of both protocol eras at its standard streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client as FastMcpClient
from fastmcp.client.transports import StdioTransport
from mcp import Client as SdkClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types import CallToolResult, TextContent, ToolListChangedNotification

from cwm.transport.mcp.context.tools import context_tools
from cwm.transport.mcp.contract.agents import agent_tools
from cwm.transport.mcp.contract.engines import engine_tools
from cwm.transport.mcp.contract.sessions import session_tools
from cwm.transport.mcp.contract.system import system_tools
from cwm.transport.mcp.contract.turns import turn_tools
from cwm.transport.mcp.contract.windows import window_tools
from cwm.transport.mcp.results.tools import result_tools
from tests.cli.command import cwm, environment, refused
from tests.transport.mcp.upstream_hosts import PROGRAM

COMMAND = [sys.executable, "-m", "cwm", "stdio"]
TOOLS = {
    tool.name
    for tool in (
        *window_tools(),
        *session_tools(),
        *turn_tools(),
        *system_tools(),
        *engine_tools(),
        *agent_tools(),
        *context_tools(),
        *result_tools(),
    )
}


pytestmark = pytest.mark.slow


@asynccontextmanager
async def sdk_client(folder: Path, era: str) -> AsyncIterator[Any]:
    parameters = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env=environment(folder, {}), cwd=folder
    )
    async with SdkClient(stdio_client(parameters), mode=era) as client:
        yield client


@asynccontextmanager
async def fastmcp_client(folder: Path, era: str) -> AsyncIterator[Any]:
    transport = StdioTransport(
        COMMAND[0], COMMAND[1:], env=environment(folder, {}), cwd=str(folder), keep_alive=False
    )
    async with FastMcpClient(transport, mode=era) as client:
        yield client


@contextmanager
def started(folder: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end where a test left it running."""
    with subprocess.Popen(
        COMMAND,
        cwd=folder,
        env=environment(folder, variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], method: str, params: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}) + "\n"
    )
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    assert answer["id"] == method
    return answer


def initialize(process: subprocess.Popen[str]) -> dict[str, Any]:
    return ask(
        process,
        "initialize",
        {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    )


def children() -> set[str]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


@pytest.mark.parametrize("connect", [sdk_client, fastmcp_client])
@pytest.mark.parametrize("era", ["legacy", "auto", "2026-07-28"])
async def test_a_client_of_either_era_lists_and_calls_and_leaves_no_process(
    tmp_path: Path, connect: Any, era: str
) -> None:
    before = children()
    async with connect(tmp_path, era) as client:
        listed = await client.list_tools()
        called = await client.call_tool("session_list", {})
        resources = await client.list_resources()
        assert children() - before
    tools = getattr(listed, "tools", listed)

    assert {tool.name for tool in tools} == TOOLS
    assert called.structured_content == {"success": True, "sessions": [], "count": 0, "has_more": False}
    assert {str(one.uri) for one in getattr(resources, "resources", resources)} >= {"cwm://windows"}
    assert children() == before


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def with_upstream(folder: Path, *, stateless: bool = False) -> None:
    """A program that counts and grows, in ``cwm.yaml``."""
    upstream = {"command": [sys.executable, str(PROGRAM)], "stateless": stateless}
    (folder / "cwm.yaml").write_text(json.dumps({"upstreams": {"notes": upstream}}))


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_an_upstreams_tools_are_there_keep_their_state_and_leave_no_process(
    tmp_path: Path, era: str
) -> None:
    before = children()
    with_upstream(tmp_path)
    async with sdk_client(tmp_path, era) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        counted = [(await client.call_tool("notes_count", {})).content[0].text for _ in range(2)]
        program = int((await client.call_tool("notes_process", {})).content[0].text)

    assert names >= {*TOOLS, "notes_echo", "notes_count"}
    assert counted == ["1", "2"]
    assert children() == before
    assert not is_there(program)


async def test_a_change_of_an_upstreams_list_reaches_a_client_of_the_handshake_era(tmp_path: Path) -> None:
    with_upstream(tmp_path, stateless=True)
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    parameters = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env=environment(tmp_path, {}), cwd=tmp_path
    )
    async with SdkClient(stdio_client(parameters), mode="legacy", message_handler=hear) as client:
        await client.list_tools()
        changed.clear()
        await client.call_tool("notes_grow", {})
        async with asyncio.timeout(60):
            # That the upstream became ready may be told late as well.
            while True:
                await changed.wait()
                changed.clear()
                if "notes_grown" in {tool.name for tool in (await client.list_tools()).tools}:
                    break


async def test_a_change_of_an_upstreams_list_reaches_a_client_that_listens(tmp_path: Path) -> None:
    with_upstream(tmp_path, stateless=True)
    async with sdk_client(tmp_path, "2026-07-28") as client:
        await client.list_tools()
        async with client.listen(tools_list_changed=True) as changes, asyncio.timeout(60):
            await client.call_tool("notes_grow", {})
            assert isinstance(await anext(aiter(changes)), ToolsListChanged)
            while "notes_grown" not in {tool.name for tool in (await client.list_tools()).tools}:
                await anext(aiter(changes))


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_an_error_comes_with_its_code(tmp_path: Path, era: str) -> None:
    async with sdk_client(tmp_path, era) as client:
        result = await client.call_tool("window_status", {"window_name": "nope"})
    assert isinstance(result, CallToolResult)
    text = result.content[0]
    assert isinstance(text, TextContent)

    assert result.is_error
    assert json.loads(text.text)["code"] == "CWM-2002"


def test_standard_output_has_protocol_and_nothing_else(tmp_path: Path) -> None:
    with started(tmp_path, CWM_LOG_LEVEL="DEBUG") as process:
        assert initialize(process)["result"]["serverInfo"]["name"] == "cwm"
        health = ask(process, "tools/call", {"name": "health_check", "arguments": {}})
        rest, log = process.communicate()

    assert health["result"]["structuredContent"]["status"] == "unhealthy"
    assert (rest, process.returncode) == ("", 0)
    assert all(json.loads(line)["event"] for line in log.splitlines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_although_the_client_is_still_there(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as process:
        initialize(process)
        process.send_signal(number)

        assert process.wait() == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_database_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    run = cwm(tmp_path, "stdio", CWM_DATABASE_URL="postgresql://u:hunter2@127.0.0.1:9/cwm")

    assert run.stdout == ""
    assert run.returncode == 1
    assert run.stderr.startswith("CWM-4")
    assert "Traceback" not in run.stderr
    assert "hunter2" not in run.stderr


def test_a_changed_file_is_taken_over_while_it_runs(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text("upstreams: {}\n")
    with started(tmp_path) as process:
        initialize(process)
        config.write_text("upstreams: {docs: {command: x}}\nlogging: {log_level: DEBUG}\n")
        assert process.stderr is not None
        log = (json.loads(line) for line in iter(process.stderr.readline, ""))
        taken_over = next(entry for entry in log if entry["event"] == "settings_applied")

        assert taken_over["changed"] == ["upstreams.docs", "logging.log_level"]


def test_without_standard_streams_it_says_what_it_needs(tmp_path: Path) -> None:
    for closed in ("<&-", ">&-"):
        run = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND],
            env=environment(tmp_path, {}),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert refused(run, "CWM-1003", status=2).endswith("at its standard input and output.")


def test_a_database_of_another_version_is_one_sentence(tmp_path: Path) -> None:
    assert cwm(tmp_path, "migrate").returncode == 0
    with sqlite3.connect(tmp_path / "cwm.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")

    run = cwm(tmp_path, "stdio")

    assert "9999" in refused(run, "CWM-4002")
    assert run.stdout == ""
