"""An MCP server to stand behind the gateways: ``hold`` begins, says which gateway asked, and ends when told to."""

from __future__ import annotations

import asyncio
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import get_http_request
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

PORT = 9000


def server() -> FastMCP[Any]:
    served: FastMCP[Any] = FastMCP("held")
    go_on = asyncio.Event()

    @served.tool
    async def hold(context: Context) -> str:
        """Begin, and go on only when told to."""
        go_on.clear()
        asker = get_http_request().client
        await context.report_progress(1, 2, asker.host if asker else "")
        await go_on.wait()
        await context.report_progress(2, 2, "told to go on")
        return "held to the end"

    @served.custom_route("/go-on", methods=["POST"])
    async def release(_: Request) -> Response:
        go_on.set()
        return PlainTextResponse("going on")

    return served


if __name__ == "__main__":
    server().run(transport="http", host="0.0.0.0", port=PORT, show_banner=False)
