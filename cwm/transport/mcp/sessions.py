"""``Mcp-Session-Id`` is ours: minted, bound and ended in front of a transport that keeps no sessions.

So any replica can serve any client of the handshake era (2025-11-25 and earlier). Later clients have no
sessions; whatever they send in that header is dropped before anything can take it for one.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import uuid4

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.domain.errors import CwmError, ErrorKind
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity

PRINCIPAL: Final = "cwm.principal"
AGENT_SESSION: Final = "cwm.agent_session"

_SESSION_HEADER: Final = "mcp-session-id"
_VERSION_HEADER: Final = "mcp-protocol-version"
_MAX_INITIALIZE_BYTES: Final = 64 * 1024
_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_STATUS: Final[Mapping[ErrorKind, int]] = {
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.STORAGE: 503,
    ErrorKind.TIMEOUT: 504,
}


class McpSessions(Protocol):
    """Which MCP session ids exist, and whose they are."""

    async def begin(self, owner: Principal) -> str:
        """A new id."""

    async def touch(self, mcp_session_id: str, owner: Principal) -> bool:
        """Use an id. False when it is unknown, ended, idle for too long, or another's."""

    async def end(self, mcp_session_id: str) -> None: ...


@dataclass(slots=True)
class InProcessMcpSessions:
    """For one gateway process. At ``limit`` sessions the one that was idle longest is dropped."""

    ttl_seconds: float = 1800.0
    limit: int = 10_000
    monotonic: Callable[[], float] = time.monotonic
    _held: OrderedDict[str, tuple[Principal, float]] = field(default_factory=OrderedDict)

    async def begin(self, owner: Principal) -> str:
        self._drop_idle()
        while len(self._held) >= self.limit:
            self._held.popitem(last=False)
        mcp_session_id = uuid4().hex
        self._held[mcp_session_id] = (owner, self.monotonic())
        return mcp_session_id

    async def touch(self, mcp_session_id: str, owner: Principal) -> bool:
        self._drop_idle()
        held = self._held.get(mcp_session_id)
        if held is None or held[0] != owner:
            return False
        self._held[mcp_session_id] = (owner, self.monotonic())
        self._held.move_to_end(mcp_session_id)
        return True

    async def end(self, mcp_session_id: str) -> None:
        self._held.pop(mcp_session_id, None)

    def _drop_idle(self) -> None:
        oldest = self.monotonic() - self.ttl_seconds
        while self._held and next(iter(self._held.values()))[1] < oldest:
            self._held.popitem(last=False)


class SessionLayer:
    """ASGI middleware of the MCP endpoint: one principal per request, one session id per handshake."""

    def __init__(self, app: ASGIApp, *, path: str, sessions: McpSessions, identity: Identity) -> None:
        self.app = app
        self.path = path
        self.sessions = sessions
        self.identity = identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            principal = await self.identity.authenticate(dict(headers))
        except CwmError as refused:
            status = _STATUS.get(refused.kind, 401)
            await _refuse(scope, send, status, _INVALID_REQUEST, refused.message, refused.as_dict())
            return
        scope = {**scope, PRINCIPAL: principal}
        version = headers.get(_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self.app(_without_session(scope), receive, send)
        elif scope["method"] not in {"POST", "DELETE"}:
            await self.app(scope, receive, send)
        elif (mcp_session_id := headers.get(_SESSION_HEADER)) is not None:
            await self._go_on(mcp_session_id, principal, scope, receive, send)
        else:
            await self._open(principal, scope, receive, send)

    async def _go_on(
        self, mcp_session_id: str, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if not await self.sessions.touch(mcp_session_id, principal):
            await _refuse(scope, send, 404, _INVALID_REQUEST, "Session not found: initialize again.")
        elif scope["method"] == "DELETE":
            await self.sessions.end(mcp_session_id)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app({**scope, AGENT_SESSION: mcp_session_id}, receive, send)

    async def _open(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Only ``initialize`` may come without an id; its answer carries the new one."""
        body = b"" if scope["method"] == "DELETE" else await _read(receive)
        if body is None:
            await _refuse(
                scope,
                send,
                413,
                _INVALID_REQUEST,
                f"An initialize has at most {_MAX_INITIALIZE_BYTES} bytes.",
            )
            return
        try:
            method = _method(body) if body else None
        except ValueError:
            await _refuse(scope, send, 400, _PARSE_ERROR, "The body is not JSON.")
            return
        if method != "initialize":
            await _refuse(
                scope, send, 400, _INVALID_REQUEST, "Missing Mcp-Session-Id: initialize first, then send it."
            )
            return

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                MutableHeaders(scope=message)[_SESSION_HEADER] = await self.sessions.begin(principal)
            await send(message)

        await self.app(scope, _again(body, receive), named)


def _without_session(scope: Scope) -> Scope:
    kept = [(name, value) for name, value in scope["headers"] if name != _SESSION_HEADER.encode()]
    return {**scope, "headers": kept}


async def _read(receive: Receive) -> bytes | None:
    """The whole body, empty for a client that left; None as soon as it is too long for an initialize."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        body += message.get("body", b"")
        if len(body) > _MAX_INITIALIZE_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _method(body: bytes) -> Any:
    """Raises ValueError for what is no JSON, also for JSON nested too deep to read."""
    try:
        request = json.loads(body)
    except RecursionError as nested:
        raise ValueError("nested too deep") from nested
    return request.get("method") if isinstance(request, dict) else None


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that begins with the body that was read."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


async def _refuse(
    scope: Scope, send: Send, status: int, code: int, message: str, data: dict[str, Any] | None = None
) -> None:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    response = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=status)
    await response(scope, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
