"""Lines of log of one request find each other, and its trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from tests.cli.command import environment, serving
from tests.traces.gateway import arrived, caller
from tests.traces.sink import Sink
from tests.transport.mcp.gateway import sdk_agent

pytestmark = pytest.mark.slow

UPSTREAM = Path(__file__).with_name("upstream.py")


@contextmanager
def program(folder: Path, tracing: dict[str, Any]) -> Iterator[str]:
    """``cwm serve`` with an upstream, of whose calls it writes a line each."""
    command = [sys.executable, str(UPSTREAM)]
    upstream = {"command": command[0], "args": command[1:], "connect_seconds": 60}
    config = {"upstreams": {"up": upstream}, "tracing": tracing}
    (folder / "cwm.yaml").write_text(json.dumps(config))
    with serving(folder) as (url, process):
        yield url
        process.terminate()
        assert process.wait(timeout=30) == 0


def lines(folder: Path) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.startswith("{")]
    return [line for line in told if line["event"].startswith("upstream up: tools/call")]


async def test_a_line_of_a_traced_request_names_its_trace_and_what_was_open(
    tmp_path: Path, collector: Sink, era: str
) -> None:
    whose = caller()
    with program(tmp_path, {"otlp_endpoint": collector.url, "service_name": "gateway-a"}) as url:
        async with sdk_agent(url, era) as agent:
            with whose.calling():
                await agent.call("up_came_with")
    (line,) = lines(tmp_path)
    # What was still here when it was told to stop has been sent.
    call = collector.one("tools/call up_came_with")
    assert line["trace_id"] == call.trace == whose.trace
    assert line["span_id"] in {span.id for span in collector.of(whose.trace)}
    assert call.resource.items() >= {"service.name": "gateway-a"}.items()


async def test_without_traces_a_request_has_an_id(tmp_path: Path) -> None:
    with program(tmp_path, {}) as url:
        async with sdk_agent(url, "2026-07-28") as agent:
            await agent.call("up_came_with")
            await agent.call("up_came_with")
    first, second = lines(tmp_path)
    assert first["request_id"] != second["request_id"]
    assert "trace_id" not in first


async def test_a_client_that_starts_the_gateway_is_traced_too(
    tmp_path: Path, collector: Sink, era: str
) -> None:
    whose = caller()
    variables = environment(tmp_path, {"CWM_OTLP_ENDPOINT": collector.url})
    transport = StdioTransport(sys.executable, ["-m", "cwm", "stdio"], env=variables, keep_alive=False)
    async with Client(transport, mode=era) as client:
        with whose.calling():
            await client.call_tool("window_list")
    await arrived(collector, lambda: "tools/call window_list" in collector.names())
    call = collector.one("tools/call window_list")
    assert (call.trace, call.parent) == (whose.trace, whose.span)
    assert call.attributes["network.transport"] == "pipe"
    assert collector.below(call)
