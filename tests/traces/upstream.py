"""An MCP server that tells what trace a call came in; also a program: ``python upstream.py`` speaks stdio."""

from __future__ import annotations

from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_http_headers

from cwm.transport.mcp.agent import meta_of, sdk_context


def tracing_server() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("tracing", version="1.0.0")

    @server.tool
    def came_with(context: Context, note: str = "") -> dict[str, Any]:
        """What named the trace: in ``_meta`` and in the HTTP request."""
        meta = meta_of(sdk_context(context.request_context))
        headers = get_http_headers(include_all=True)
        return {"meta": meta.get("traceparent"), "header": headers.get("traceparent")}

    @server.tool
    def fail(note: str = "") -> str:
        """Fail as tools do."""
        raise ToolError(f"I can not: {note}")

    return server


if __name__ == "__main__":
    tracing_server().run("stdio", show_banner=False)
