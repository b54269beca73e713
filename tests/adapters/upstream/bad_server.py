"""A server of streamable HTTP that answers as it is told to, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cwm.domain.upstream import UpstreamSpec
from tests.transport.mcp.gateway import serving

Reply = Callable[[Request, dict[str, Any]], Awaitable[Response]]


@dataclass(slots=True)
class BadServer:
    """Speaks 2025-06-18. ``on`` says how a method is answered other than well; GET and DELETE are methods too.

    ``sessions`` are the ones it knows; ``asked`` what it was asked: method, then the request's headers.
    """

    on: dict[str, Reply] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    capabilities: dict[str, Any] = field(default_factory=lambda: {"tools": {"listChanged": True}})
    instructions: str | None = None

    def spec(self, name: str = "bad", **fields: Any) -> UpstreamSpec:
        return UpstreamSpec(name, url=f"{self.url}/mcp", **fields)

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            message = json.loads(await request.body() or b"{}")
            method = str(message.get("method", request.method))
            self.asked.append((method, dict(request.headers)))
            self.messages.append(message)
            response = await self.on.get(method, self._answer)(request, message)
            await response(scope, receive, send)

    async def _answer(self, request: Request, message: dict[str, Any]) -> Response:
        method = message.get("method", request.method)
        if method == "server/discover":
            return JSONResponse(error(None, "Bad Request: unsupported"), 400)
        if method == "initialize":
            return self.greeting(message)
        session = request.headers.get("mcp-session-id", "")
        if session not in self.sessions:
            return JSONResponse(error(None, "Session not found"), 404)
        if method == "DELETE":
            self.sessions.discard(session)
        if "id" not in message:
            return Response(status_code={"DELETE": 200, "GET": 405}.get(method, 202))
        return JSONResponse(result(message, {"tools": [TOOL]} if method == "tools/list" else text("done")))

    def greeting(self, message: dict[str, Any]) -> Response:
        session = uuid4().hex
        self.sessions.add(session)
        greeted = {
            "protocolVersion": "2025-06-18",
            "capabilities": self.capabilities,
            "serverInfo": {"name": "bad", "version": "1"},
        }
        if self.instructions is not None:
            greeted["instructions"] = self.instructions
        return JSONResponse(result(message, greeted), headers={"mcp-session-id": session})

    async def holding(self, _: Request, message: dict[str, Any]) -> Response:
        """Says nothing on an open stream until told to go on."""

        async def stream() -> AsyncIterator[str]:
            yield ": waiting\n\n"
            self.began.set()
            await self.go_on.wait()
            yield f"event: message\ndata: {json.dumps(result(message, text('held')))}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")


TOOL = {"name": "do", "inputSchema": {"type": "object"}}


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def result(message: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": told}


def error(message_id: Any, told: str, code: int = -32000) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": told}}


def replying(response: Callable[[], Response]) -> Reply:
    async def reply(_: Request, __: dict[str, Any]) -> Response:
        return response()

    return reply


@asynccontextmanager
async def bad_server(**on: Reply) -> AsyncIterator[BadServer]:
    server = BadServer(dict(on))
    async with serving(server) as url:
        server.url = url
        try:
            yield server
        finally:
            server.go_on.set()
