"""What upstreams log during a request reaches the client that made it, from the level that it asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from mcp_types import LoggingMessageNotification, LoggingMessageNotificationParams
from starlette.requests import Request
from starlette.responses import Response

from cwm.domain.upstream import UpstreamSpec
from tests.adapters.upstream.bad_server import BadServer, bad_server, result, text
from tests.adapters.upstream.programs import spec as program
from tests.transport.mcp.gateway import LEGACY, MODERN, gateway
from tests.transport.mcp.upstream_hosts import hosted
from tests.transport.mcp.wire import MODERN_META, Wire, wired

pytestmark = pytest.mark.slow

LOGS = [{"level": "debug", "data": "step 1"}, {"level": "error", "logger": "disk", "data": {"full": True}}]
PROGRAM = f"""
def call(request):
    for each in {LOGS!r}:
        print(json.dumps({{"jsonrpc": "2.0", "method": "notifications/message", "params": each}}), flush=True)
    return {{"content": [{{"type": "text", "text": "done"}}]}}
serve(call)
"""


async def logging(_: Request, message: dict[str, Any]) -> Response:
    messages = [{"jsonrpc": "2.0", "method": "notifications/message", "params": each} for each in LOGS]
    events = [f"data: {json.dumps(each)}\n\n" for each in [*messages, result(message, text("done"))]]
    return Response("".join(events), media_type="text/event-stream")


def server_that_logs(server: BadServer) -> UpstreamSpec:
    server.on["tools/call"] = logging
    return server.spec("up")


async def logged(wire: Wire, session: str, tool: str) -> list[dict[str, Any]]:
    """The messages that came with the answer, and before it."""
    response = await wire.ask(session, "tools/call", name=tool, arguments={})
    return before_the_answer(response.text)


def before_the_answer(body: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data:")]
    *messages, answer = (json.loads(line) for line in lines or [body])
    assert answer["result"]["content"][0]["text"] == "done"
    return [each["params"] for each in messages if each["method"] == "notifications/message"]


async def test_a_client_gets_what_an_upstream_logs_from_the_level_that_it_set_with_the_upstreams_name(
    tmp_path: Path,
) -> None:
    async with bad_server() as server:
        specs = [server_that_logs(server), program(PROGRAM)]
        async with gateway(tmp_path, upstreams=specs) as running, wired(running.url) as wire:
            for upstream in ("up", "bad"):
                step = {"level": "debug", "logger": upstream, "data": "step 1"}
                full = {"level": "error", "logger": f"{upstream}.disk", "data": {"full": True}}
                session, other = await wire.session(), await wire.session()
                assert await logged(wire, session, f"{upstream}_do") == [full]
                for level, messages in {"debug": [step, full], "error": [full], "alert": []}.items():
                    answer = await wire.ask(session, "logging/setLevel", level=level)
                    assert '"result"' in answer.text
                    assert await logged(wire, session, f"{upstream}_do") == messages
                assert await logged(wire, other, f"{upstream}_do") == [full]


async def test_a_client_of_2026_gets_what_is_logged_only_for_a_request_that_asks_for_it(
    tmp_path: Path,
) -> None:
    async with bad_server() as server:
        specs = [server_that_logs(server)]
        async with gateway(tmp_path, upstreams=specs) as running, wired(running.url) as wire:
            for level, count in {None: 0, "debug": 2, "warning": 1}.items():
                meta = {**MODERN_META, **({"io.modelcontextprotocol/logLevel": level} if level else {})}
                params = {"name": "up_do", "arguments": {}, "_meta": meta}
                body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
                response = await wire.post(
                    body, mcp_protocol_version=MODERN, mcp_method="tools/call", mcp_name="up_do"
                )
                assert len(before_the_answer(response.text)) == count


@pytest.mark.parametrize("upstream_era", [LEGACY, MODERN])
async def test_a_real_server_of_either_era_is_heard_by_a_client_of_the_handshake_era(
    tmp_path: Path, upstream_era: str
) -> None:
    def noisy(server: FastMCP[Any]) -> None:
        @server.tool
        async def noisy(context: Context) -> str:
            for level in ("info", "warning"):
                message = LoggingMessageNotificationParams(level=level, data=f"a {level}")
                notification = LoggingMessageNotification(params=message)
                await context.session.send_notification(notification, related_request_id=context.request_id)
            return "done"

    async with (
        hosted(legacy=upstream_era == LEGACY, extend=noisy) as host,
        gateway(tmp_path, upstreams=[host.spec("up")]) as running,
        wired(running.url) as wire,
    ):
        session = await wire.session()
        await wire.ask(session, "logging/setLevel", level="warning")
        messages = await logged(wire, session, "up_noisy")
        assert [(each["level"], each["data"]) for each in messages] == [("warning", "a warning")]
