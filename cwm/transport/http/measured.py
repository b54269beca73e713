"""Counts and times every HTTP request by face and route."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.ports.meter import RequestMeter

_OTHER: Final = "other"
_LEFT: Final = "left"
_MCP: Final = "mcp"
# Streams that last as long as somebody looks: how long that is says nothing of the gateway.
_LOOKED_AT: Final = "/console/events"
_METHODS: Final = frozenset({"GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"})


class Measured:
    """ASGI middleware, outside all others. A route is a method and one of ``paths``; everything else is ``other``."""

    def __init__(self, app: ASGIApp, meter: RequestMeter, paths: Collection[str]) -> None:
        self.app = app
        self.meter = meter
        self._routes = {(m, path): (_face(path), f"{m} {path}") for path in paths for m in _METHODS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        face, route = self._routes.get((scope["method"], path)) or (_face(path), _OTHER)
        started, status, answered = time.perf_counter(), 0, False

        async def measuring_send(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not answered and message.get("body"):
                answered = True
                self.meter.http_answered(face, time.perf_counter() - started)
            await send(message)

        self.meter.http_begun(face, route)
        try:
            await self.app(scope, receive, measuring_send)
        except Exception:
            status = status or 500
            raise
        finally:
            seconds = None if face == _MCP or path == _LOOKED_AT else time.perf_counter() - started
            self.meter.http_ended(face, route, f"{status // 100}xx" if status else _LEFT, seconds)


def _face(path: str) -> str:
    if path == "/mcp" or path.startswith("/mcp/"):
        return _MCP
    return "openai" if path.startswith("/v1/") else "http"
