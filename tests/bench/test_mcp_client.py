"""The clients of what a benchmark starts go to it straight."""

from __future__ import annotations

import pytest
from fastmcp import FastMCP

from cwm_bench.harness import agent, agents
from tests.transport.mcp.gateway import serving

pytestmark = pytest.mark.slow

_NOBODY = "http://127.0.0.1:9"


async def test_clients_of_a_benchmark_ask_no_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, _NOBODY)
        monkeypatch.setenv(name.lower(), _NOBODY)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    server = FastMCP("echo")

    @server.tool
    def echo() -> str:
        return "hello"

    async with serving(server.http_app()) as url:
        for era in agents.ERAS:
            async with agents.agent(f"{url}/mcp", era) as one:
                assert (await one.call("echo")).text == "hello"
        async with agent.agent(url, "model") as other:
            assert (await other.mcp.call_tool("echo")).data == "hello"
