"""Header values without the whitespace around them, which is no part of them (RFC 9110, section 5.5).

Not every HTTP parser takes all of it off, and the protocol compares headers with the body.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

_WHITESPACE: Final = b" \t"


class TrimmedHeaderValues:
    """ASGI middleware: what is behind it sees every header value trimmed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            trimmed = [(name, value.strip(_WHITESPACE)) for name, value in scope["headers"]]
            scope = {**scope, "headers": trimmed}
        await self.app(scope, receive, send)
