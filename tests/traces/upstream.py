"""An MCP server that tells what trace a call came in; also a program: ``python upstream.py`` speaks stdio."""

from __future__ import annotations

from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_http_headers


def tracing_server() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("tracing", version="1.0.0")

    @server.tool
    def came_with(context: Context, note: str = "") -> dict[str, Any]:
        """What named the trace: in ``_meta`` and in the HTTP request."""
        assert context.request_context is not None
        meta = (context.request_context._srctx.params or {}).get("_meta", {})
        headers = get_http_headers(include_all=True)
        return {"meta": meta.get("traceparent"), "header": headers.get("traceparent")}

    @server.tool
    def fail(note: str = "") -> str:
        """Fail as tools do."""
        raise ToolError(f"I can not: {note}")

    return server


if __name__ == "__main__":
    tracing_server().run("stdio", show_banner=False)
