"""URIs of an upstream through the gateway: what a list, a link or a tool's page names can be read there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cwm.domain.upstream import Credentials
from tests.adapters.upstream.bad_server import BadServer, bad_server, error, result
from tests.transport.mcp.gateway import gateway
from tests.transport.mcp.wire import Wire, wired

pytestmark = pytest.mark.slow

PAGE = "ui://map/view.html"
HANDBOOK, REPORT = "https://example.com/handbook.pdf", "https://example.com/report.pdf"
APP = {"ui": {"resourceUri": PAGE}, "ui/resourceUri": PAGE}
LINKS = [{"type": "resource_link", "uri": uri, "name": "a"} for uri in (HANDBOOK, REPORT, "notes://today")]
TOOL = {"name": "map", "inputSchema": {"type": "object"}, "_meta": APP}
ANSWERS: dict[str, dict[str, Any]] = {
    "tools/list": {"tools": [TOOL]},
    "resources/list": {"resources": [{"uri": uri, "name": "a"} for uri in (PAGE, HANDBOOK, "notes://today")]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "notes://on/{day}", "name": "on"}]},
    "prompts/list": {"prompts": [{"name": "ask"}]},
    "prompts/get": {"messages": [{"role": "user", "content": link} for link in LINKS]},
    "tools/call": {"content": LINKS, "_meta": APP},
}


async def answer(_: Request, message: dict[str, Any]) -> Response:
    return JSONResponse(result(message, ANSWERS[message["method"]]))


async def read(_: Request, message: dict[str, Any]) -> Response:
    uri = message["params"]["uri"]
    if uri == "notes://nowhere":
        refusal = error(message["id"], "Resource not found", -32002)
        return JSONResponse({**refusal, "error": {**refusal["error"], "data": {"uri": uri}}})
    parts = [{"uri": each, "text": "x"} for each in (uri, f"{uri}/part")]
    return JSONResponse(result(message, {"contents": parts}))


@asynccontextmanager
async def fronted(folder: Path, credentials: Credentials) -> AsyncIterator[tuple[BadServer, Wire]]:
    async with bad_server(**dict.fromkeys(ANSWERS, answer), **{"resources/read": read}) as server:
        server.capabilities = {"tools": {}, "resources": {}, "prompts": {}}
        spec = server.spec("odd", credentials=credentials)
        async with gateway(folder, upstreams=[spec]) as running, wired(running.url) as wire:
            yield server, wire


async def asked(wire: Wire, era: str, method: str, **params: Any) -> dict[str, Any]:
    text = (await wire.ask_as(era, method, params)).text
    return dict(json.loads(text.rpartition("data:")[2]))


@pytest.mark.parametrize("credentials", [Credentials.NONE, Credentials.FORWARD])
async def test_what_the_upstream_names_can_be_read_at_the_gateway_and_the_web_stays_the_web(
    tmp_path: Path, era: str, credentials: Credentials
) -> None:
    async with fronted(tmp_path, credentials) as (_, wire):
        called = (await asked(wire, era, "tools/call", name="odd_map", arguments={}))["result"]
        told = (await asked(wire, era, "prompts/get", name="odd_ask"))["result"]
        tools = (await asked(wire, era, "tools/list"))["result"]["tools"]
        listed = (await asked(wire, era, "resources/list"))["result"]["resources"]
        own = {each["uri"] for each in listed if each["name"].startswith("odd_")}
        assert own == {"ui://odd/map/view.html", "https://odd/example.com/handbook.pdf", "notes://odd/today"}
        links = ["https://odd/example.com/handbook.pdf", REPORT, "notes://odd/today"]
        assert [each["uri"] for each in called["content"]] == links
        assert [each["content"]["uri"] for each in told["messages"]] == links
        tool = next(each for each in tools if each["name"] == "odd_map")
        for meta in (called["_meta"], tool["_meta"]):
            assert meta["ui"]["resourceUri"] == meta["ui/resourceUri"] == "ui://odd/map/view.html"


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("ui://odd/map/view.html", "ui://odd/map/view.html/part"),
        ("https://odd/example.com/handbook.pdf", f"{HANDBOOK}/part"),
        ("https://odd/example.com/unlisted", "https://example.com/unlisted/part"),
    ],
)
async def test_a_resource_is_read_under_the_name_that_was_asked_for(
    tmp_path: Path, era: str, uri: str, part: str
) -> None:
    async with fronted(tmp_path, Credentials.NONE) as (_, wire):
        contents = (await asked(wire, era, "resources/read", uri=uri))["result"]["contents"]
        assert [each["uri"] for each in contents] == [uri, part]


async def test_an_error_names_the_resource_as_the_gateway_does(tmp_path: Path, era: str) -> None:
    async with fronted(tmp_path, Credentials.NONE) as (_, wire):
        refused = await asked(wire, era, "resources/read", uri="notes://odd/nowhere")
        assert refused["error"]["data"] == {"uri": "notes://odd/nowhere"}
