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
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from tests.cli.command import cwm, environment, serving
from tests.traces.gateway import arrived, caller
from tests.traces.sink import Sink
from tests.transport.mcp.gateway import sdk_agent

pytestmark = pytest.mark.slow

UPSTREAM = Path(__file__).with_name("upstream.py")


@contextmanager
def program(folder: Path, tracing: dict[str, Any], **variables: str) -> Iterator[str]:
    """``cwm serve`` with an upstream, of whose calls it writes a line each."""
    command = [sys.executable, str(UPSTREAM)]
    upstream = {"command": command[0], "args": command[1:], "connect_seconds": 60}
    config = {"upstreams": {"up": upstream}, "tracing": tracing}
    (folder / "cwm.yaml").write_text(json.dumps(config))
    with serving(folder, **variables) as (url, process):
        yield url
        process.terminate()
        assert process.wait(timeout=30) == 0


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.startswith("{")]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in told(folder) if line["event"].startswith("upstream up: tools/call")]


def made_key(folder: Path, tenant: str) -> str:
    made = cwm(folder, "keys", "create", "jane", "--scope", "tools:call", "--tenant", tenant)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


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


async def test_a_line_names_the_tenant_that_asked(tmp_path: Path, era: str) -> None:
    keys = {tenant: made_key(tmp_path, tenant) for tenant in ("acme", "globex")}
    with program(tmp_path, {}, CWM_API_KEYS="true") as url:
        for key in keys.values():
            transport = StreamableHttpTransport(f"{url}/mcp", headers={"authorization": f"Bearer {key}"})
            async with Client(transport, mode=era) as client:
                await client.call_tool("up_came_with")
    assert [line["tenant"] for line in lines(tmp_path)] == ["acme", "globex"]
    log = (tmp_path / "log").read_text()
    assert not any(key in log for key in keys.values())
    assert not any("jane" in str({**line, "event": ""}) for line in told(tmp_path))
    assert all("tenant" not in line for line in told(tmp_path) if "request_id" not in line)


async def test_over_stdio_a_line_names_the_tenant_of_the_process(tmp_path: Path, era: str) -> None:
    upstreams = {"up": {"command": sys.executable, "args": [str(UPSTREAM)], "connect_seconds": 60}}
    (tmp_path / "cwm.yaml").write_text(json.dumps({"upstreams": upstreams}))
    variables = environment(tmp_path, {"CWM_TENANT": "acme", "CWM_LOG_FORMAT": "json"})
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        transport = StdioTransport(
            sys.executable,
            ["-m", "cwm", "stdio"],
            env=variables,
            cwd=str(tmp_path),
            keep_alive=False,
            log_file=log,
        )
        async with Client(transport, mode=era) as client:
            await client.call_tool("up_came_with")
    (line,) = lines(tmp_path)
    assert line["tenant"] == "acme"
    assert line["request_id"]


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
