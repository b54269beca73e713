"""Where upstream servers of tests run: on a loopback socket, that can be taken away and given back."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastmcp import FastMCP
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cwm.domain.upstream import UpstreamSpec
from tests.transport.mcp.upstream_server import Seen, upstream_server

PROGRAM = Path(__file__).with_name("upstream_server.py")


def stdio_spec(name: str, **fields: Any) -> UpstreamSpec:
    return UpstreamSpec(name, command=(sys.executable, str(PROGRAM)), **fields)


@dataclass(slots=True)
class Host:
    """``start`` and ``stop`` are the server's own; its port stays."""

    legacy: bool
    completes: bool = True
    extend: Callable[[FastMCP[Any]], None] = lambda _: None
    seen: Seen = field(default_factory=Seen)
    port: int = 0
    _server: uvicorn.Server | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def spec(self, name: str, **fields: Any) -> UpstreamSpec:
        return UpstreamSpec(name, url=self.url, **fields)

    async def start(self) -> None:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen()
        self.port = listening.getsockname()[1]
        server = upstream_server(self.seen, completes=self.completes)
        self.extend(server)
        app: ASGIApp = server.http_app(path="/mcp", stateless_http=False)
        config = uvicorn.Config(
            HandshakeOnly(app) if self.legacy else app,
            log_config=None,
            lifespan="on",
            timeout_graceful_shutdown=0,
        )
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def stop(self) -> None:
        """As a crash does: nobody gets an answer any more."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._task
            self._server = self._task = None


class HandshakeOnly:
    """A server of 2025-11-25: it has never heard of ``server/discover``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"mcp-protocol-version", b"2026-07-28") in scope["headers"]:
            error = {"code": -32000, "message": "Bad Request: Unsupported protocol version"}
            response = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=400)
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@asynccontextmanager
async def hosted(
    *, legacy: bool, completes: bool = True, extend: Callable[[FastMCP[Any]], None] = lambda _: None
) -> AsyncIterator[Host]:
    host = Host(legacy, completes, extend)
    await host.start()
    try:
        yield host
    finally:
        await host.stop()


def reserved_port() -> int:
    """A port at which nobody listens, yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def error_of(text: str) -> dict[str, Any]:
    return dict(json.loads(text))
