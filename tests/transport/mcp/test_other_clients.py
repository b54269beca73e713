"""Clients that share no code with the gateway: both TypeScript SDKs and MCP Inspector's CLI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.contracts.nouns import freeze
from tests.node.programs import Ended, Programs
from tests.transport.mcp.contract.fields import INPUTS, RESOURCES
from tests.transport.mcp.gateway import Gateway

pytestmark = pytest.mark.slow

OTHERS = [("v1", "legacy"), ("v2", "legacy"), ("v2", "2026-07-28"), ("v2", "auto")]
CALLS = [
    ["session_list", {}],
    ["window_list", {"limit": 5}],
    ["window_status", {"window_name": "nothing"}],
    ["window_list", {"limit": 0}],
    ["window_melt", {}],
    ["session_list", {}],
]
NO_SUCH_WINDOW = {
    "code": "CWM-2002",
    "message": "There is no window 'nothing'.",
    "retryable": False,
    "context": {"window_name": "nothing"},
}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
TOOL_FAILED = 5


@pytest.fixture(scope="module")
async def tenant(gateway: Gateway) -> str:
    """The gateway's own, which is offered every tool, with a single window, called keep."""
    tenant = "acme"
    await freeze(gateway.parts.base.registry, "keep", tenant=tenant)
    return tenant


@pytest.fixture(scope="module", params=OTHERS, ids="-".join)
async def seen(
    request: pytest.FixtureRequest, programs: Programs, gateway: Gateway, tenant: str
) -> dict[str, Any]:
    """What a TypeScript client saw of a whole visit."""
    sdk, era = request.param
    ended = await programs.script("client.mjs", sdk, era, f"{gateway.url}/mcp", tenant, json.dumps(CALLS))
    assert ended.status == 0, ended.told
    return {**json.loads(ended.out), "era": era}


async def test_a_typescript_client_finds_every_tool_and_resource(seen: dict[str, Any]) -> None:
    assert {tool["name"] for tool in seen["tools"]} >= set(INPUTS)
    assert {resource["uri"] for resource in seen["resources"]} >= set(RESOURCES)
    assert all(tool["outputSchema"]["type"] == "object" for tool in seen["tools"])
    assert json.loads(seen["read"]["contents"][0]["text"])["total"] == 1


async def test_a_typescript_client_gets_answers_and_whole_errors_in_one_session(
    seen: dict[str, Any],
) -> None:
    sessions, windows, unknown, malformed, melted, again = seen["answers"]
    assert [session["id"] for session in sessions["structuredContent"]["sessions"]] == ["of-keep"]
    assert [window["name"] for window in windows["structuredContent"]["windows"]] == ["keep"]
    assert coded(unknown) == NO_SUCH_WINDOW
    assert (coded(malformed)["code"], coded(malformed)["context"]) == ("CWM-1003", {"field": "limit"})
    assert (melted["thrown"]["code"], melted["thrown"]["data"]["code"]) == (-32602, "CWM-1003")
    assert again["structuredContent"] == sessions["structuredContent"]


async def test_a_typescript_clients_session_lasts_until_it_leaves(
    seen: dict[str, Any], gateway: Gateway, tenant: str
) -> None:
    (session,) = set(seen["sessions"])
    if seen["era"] != "legacy":
        assert session is None
        return
    headers = {"mcp-session-id": session, "x-tenant": tenant}
    async with httpx2.AsyncClient(trust_env=False) as http:
        assert (await http.post(f"{gateway.url}/mcp", json=PING, headers=headers)).status_code == 404


@pytest.fixture(params=["legacy", "modern"])
def inspect(
    request: pytest.FixtureRequest, programs: Programs, gateway: Gateway, tenant: str, tmp_path: Path
) -> Any:
    """MCP Inspector's CLI in either era: ``await inspect(method, option, ...)``."""

    async def run(method: str, *options: str) -> Ended:
        line = programs.line("mcp-inspector", "--cli", f"{gateway.url}/mcp", "--method", method)
        how = ("--protocol-era", request.param, "--format", "json", "--header", f"x-tenant: {tenant}")
        return await programs.run((*line, *how, *options), variables={"HOME": str(tmp_path)})

    return run


async def test_the_inspector_has_nothing_to_say_against_our_schemas(inspect: Any) -> None:
    listed = await inspect("tools/list", "--strict")
    assert (listed.status, listed.err) == (0, ""), listed.told
    assert {tool["name"] for tool in result(listed)["tools"]} >= set(INPUTS)


async def test_the_inspector_reads_resources(inspect: Any) -> None:
    listed = result(await inspect("resources/list"))
    assert {resource["uri"] for resource in listed["resources"]} >= set(RESOURCES)
    (window,) = json.loads(
        result(await inspect("resources/read", "--uri", "cwm://windows"))["contents"][0]["text"]
    )["windows"]
    assert window["name"] == "keep"


async def test_the_inspector_shows_answers_and_whole_errors(inspect: Any) -> None:
    windows = result(await inspect("tools/call", "--tool-name", "window_list", "--tool-arg", "limit=5"))
    assert windows["structuredContent"]["total"] == 1
    failed = await inspect("tools/call", "--tool-name", "window_status", "--tool-arg", "window_name=nothing")
    assert failed.status == TOOL_FAILED, failed.told
    assert coded(json.loads(failed.out)["result"]) == NO_SUCH_WINDOW


def result(ended: Ended) -> dict[str, Any]:
    assert ended.status == 0, ended.told
    return dict(json.loads(ended.out)["result"])


def coded(answer: dict[str, Any]) -> dict[str, Any]:
    """The error of a failed call, the same in the text and in ``_meta``."""
    assert answer["isError"] is True
    assert "structuredContent" not in answer
    told = json.loads(answer["content"][0]["text"])
    assert answer["_meta"]["dev.cwm/error"] == told
    return dict(told)
