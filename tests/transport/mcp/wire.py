"""MCP over HTTP without a client in between: what is sent and answered, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2

from cwm.transport.mcp.requests.agent import HANDLE_META

LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer of server-sent events."""

    lines: AsyncIterator[str]

    async def message(self) -> dict[str, Any]:
        """The next JSON-RPC message; a stream that ended fails."""
        return dict(json.loads(await self._next("data:")))

    async def comment(self) -> None:
        """The next sign of life."""
        await self._next(":")

    async def rest(self) -> list[dict[str, Any]]:
        """The messages up to the stream's end."""
        messages: list[dict[str, Any]] = []
        with suppress(EOFError):
            while True:
                messages.append(await self.message())
        return messages

    async def _next(self, start: str) -> str:
        async with asyncio.timeout(10):
            async for line in self.lines:
                if line.startswith(start):
                    return line.removeprefix(start)
        raise EOFError


@dataclass(frozen=True, slots=True)
class Wire:
    http: httpx2.AsyncClient

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        sent = {"accept": "application/json, text/event-stream", **dashed(headers)}
        return await self.http.post("/mcp", json=body, headers=sent)

    async def initialize(self, **headers: str) -> httpx2.Response:
        return await self.post(initialize(), **headers)

    async def session(self, **headers: str) -> str:
        return (await self.initialize(**headers)).raise_for_status().headers["mcp-session-id"]

    async def end(self, **headers: str) -> httpx2.Response:
        return await self.http.delete("/mcp", headers=dashed(headers))

    async def get(self, **headers: str) -> httpx2.Response:
        return await self.http.get("/mcp", headers={"accept": "text/event-stream", **dashed(headers)})

    async def ask(self, session_id: str, method: str, **params: Any) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 3, "method": method, "params": params}
        return await self.post(body, mcp_session_id=session_id)

    async def ask_as(self, era: str, method: str, params: dict[str, Any], **headers: str) -> httpx2.Response:
        """The same in either era; in the one of handshakes a session begins for it."""
        body = {"jsonrpc": "2.0", "id": 3, "method": method, "params": params}
        if era == "legacy":
            return await self.post(body, mcp_session_id=await self.session(**headers), **headers)
        if (named := params.get("name", params.get("uri"))) is not None:
            headers["mcp_name"] = named
        body["params"] = {**params, "_meta": MODERN_META}
        return await self.post(body, mcp_protocol_version="2026-07-28", mcp_method=method, **headers)

    @asynccontextmanager
    async def stream(self, session_id: str, **headers: str) -> AsyncIterator[EventStream]:
        sent = {"accept": "text/event-stream", "mcp-session-id": session_id, **dashed(headers)}
        async with self.http.stream("GET", "/mcp", headers=sent) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream"
            yield EventStream(response.aiter_lines())

    @asynccontextmanager
    async def listen(
        self, wanted: dict[str, Any], handle: str | None = None, **headers: str
    ) -> AsyncIterator[EventStream]:
        """A listen stream of 2026-07-28 that has been acknowledged."""
        meta = MODERN_META if handle is None else {**MODERN_META, HANDLE_META: handle}
        params = {"_meta": meta, "notifications": wanted}
        body = {"jsonrpc": "2.0", "id": "listening", "method": "subscriptions/listen", "params": params}
        sent = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "subscriptions/listen",
            **dashed(headers),
        }
        async with self.http.stream("POST", "/mcp", json=body, headers=sent) as response:
            assert response.status_code == 200
            stream = EventStream(response.aiter_lines())
            acknowledged = await stream.message()
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            yield stream


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[Wire]:
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        yield Wire(http)


def dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def initialize(**more: Any) -> dict[str, Any]:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {**params, **more}}
