"""The stdio transport in a process of its own, apart from the gateway's parts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from tests.transport.mcp.gateway import LEGACY, MODERN
from tests.transport.mcp.stdio_server import PIECES

ROOT = Path(__file__).parents[3]
SERVER = [sys.executable, "-m", "tests.transport.mcp.stdio_server"]

pytestmark = pytest.mark.slow


def started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        SERVER, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def client(era: str) -> Client[Any]:
    transport = StdioTransport(SERVER[0], SERVER[1:], cwd=str(ROOT), keep_alive=False)
    return Client(transport, mode=era)


def lines(*messages: dict[str, Any]) -> str:
    return "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)


HELLO = lines(
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
)


def call(tool: str) -> str:
    return lines({"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}})


@pytest.mark.parametrize("era", [LEGACY, MODERN, "auto"])
async def test_progress_is_heard_in_order_and_before_the_answer(era: str) -> None:
    heard: list[str | None] = []

    async def hear(_progress: float, _total: float | None, message: str | None) -> None:
        heard.append(message)

    async with client(era) as one:
        result = await one.call_tool("say", progress_handler=hear)

    assert "".join(message or "" for message in heard) == result.data == "".join(PIECES)


@pytest.mark.parametrize("era", [LEGACY, MODERN])
async def test_what_a_tool_prints_is_not_taken_for_protocol(era: str) -> None:
    async with client(era) as one:
        assert (await one.call_tool("chatter")).data == "said"


def test_a_line_that_is_no_message_costs_nothing_but_itself() -> None:
    server = started()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(HELLO + "no json\n\n" + '{"half": \n' + call("chatter"))
    server.stdin.flush()
    answers = [json.loads(server.stdout.readline()) for _ in range(2)]
    rest, _ = server.communicate()

    assert [answer["id"] for answer in answers] == [1, 2]
    assert (rest, server.returncode) == ("", 0)


def test_a_message_longer_than_any_pipe_is_read_whole() -> None:
    server = started()
    assert server.stdin is not None
    assert server.stdout is not None
    long = {"id": 3, "method": "tools/call", "params": {"name": "x" * 1_000_000, "arguments": {}}}
    server.stdin.write(HELLO + lines(long))
    server.stdin.flush()
    answers = [json.loads(server.stdout.readline()) for _ in range(2)]
    server.communicate()

    assert [answer["id"] for answer in answers] == [1, 3]
    assert server.returncode == 0


def test_a_client_that_closes_standard_input_during_a_call_ends_the_server() -> None:
    server = started()
    assert server.stdin is not None
    assert server.stderr is not None
    server.stdin.write(HELLO + call("stay"))
    server.stdin.flush()
    assert server.stderr.readline() == "staying\n"
    server.communicate()

    assert server.returncode == 0


def test_a_client_that_is_gone_altogether_ends_the_server_without_a_traceback() -> None:
    server = started()
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    server.stdout.close()
    server.stdin.write(HELLO)
    server.stdin.close()

    assert "Traceback" not in server.stderr.read()
    server.stderr.close()
    assert server.wait() == 0
