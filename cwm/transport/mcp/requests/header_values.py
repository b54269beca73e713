"""Strips whitespace around header values, which is not part of them (RFC 9110, section 5.5).

Some HTTP parsers leave part of it, and MCP compares headers with the body.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

_WHITESPACE: Final = b" \t"


class TrimmedHeaderValues:
    """ASGI middleware that trims every header value of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            trimmed = [(name, value.strip(_WHITESPACE)) for name, value in scope["headers"]]
            scope = {**scope, "headers": trimmed}
        await self.app(scope, receive, send)
