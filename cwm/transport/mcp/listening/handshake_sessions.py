"""Creates, checks and ends MCP sessions (``Mcp-Session-Id``) in front of a transport that has none.

So any replica can serve any client of the handshake era (2025-11-25 and earlier). Later clients have no sessions;
the header is removed from their requests, so that nothing behind takes its value for a session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.domain.errors import CwmError, ErrorKind, LimitError
from cwm.domain.json_bounds import UNSCANNED_BYTES
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.identity import Identity
from cwm.services.access.limits import Limits
from cwm.services.aside import held_by_its_work
from cwm.services.audit.journal import Journal
from cwm.transport.http.body_limit import declared_length
from cwm.transport.http.envelope import ClientLeftError, body_of
from cwm.transport.http.request_keys import AGENT_SESSION, CREDENTIAL, HELD, PRINCIPAL
from cwm.transport.mcp.listening.streams import EventStreams
from cwm.transport.mcp.listening.subscriptions import Subscriptions
from cwm.transport.mcp.requests.insertions import INSERTIONS, Insertions
from cwm.transport.mcp.requests.retry_after import REFUSED, Refused

_SESSION_HEADER: Final = "mcp-session-id"
_VERSION_HEADER: Final = "mcp-protocol-version"
_MAX_INITIALIZE_BYTES: Final = 64 * 1024
# The SDK parses and checks a message on the event loop, in several rounds.
_PART_OF_VALUES: Final = 4
_STATUS: Final[Mapping[ErrorKind, int]] = {
    ErrorKind.INVALID: 400,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.LIMITED: 429,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.STORAGE: 503,
    ErrorKind.TIMEOUT: 504,
}


@dataclass(frozen=True, slots=True)
class SessionLayer:
    """ASGI middleware of the MCP endpoint: finds each request's principal and gives each handshake a session id."""

    app: ASGIApp
    path: str
    identity: Identity
    limits: Limits
    sessions: AgentSessions
    journal: Journal
    streams: EventStreams
    subscriptions: Subscriptions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            principal = scope.get(PRINCIPAL) or await self.identity.authenticate(dict(headers))
        except CwmError as error:
            await _refuse_coded(scope, send, INVALID_REQUEST, error)
            return
        answer, insertions = Refused(), Insertions()
        scope = {**scope, PRINCIPAL: principal, REFUSED: answer, INSERTIONS: insertions}
        send = insertions.on(answer.on(send))
        with ExitStack() as work:
            try:
                receive = await self._arrived(principal, scope, receive, work)
            except CwmError as error:
                await _refuse_coded(scope, send, INVALID_REQUEST, error)
                return
            except ClientLeftError:
                return
            await self._serve(principal, headers, scope, receive, send)

    async def _arrived(
        self, principal: Principal, scope: Scope, receive: Receive, work: ExitStack
    ) -> Receive:
        """Count a request before it is read: CWM-7001, 7002. A large message has arrived then, and is bounded: CWM-1003.

        A message of at most 64 KiB is counted when its method is known: one that cancels another must get through, and takes no place.
        """
        if scope["method"] != "POST":
            await self.limits.count_list(principal)
            return receive
        if (length := declared_length(scope)) is not None and length <= UNSCANNED_BYTES:
            return receive
        scope[HELD] = work.enter_context(held_by_its_work(await self.limits.admit_list(principal)))
        return _replayed(await body_of(scope, receive, _PART_OF_VALUES), receive)

    async def _serve(
        self, principal: Principal, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        version = headers.get(_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self.app(_without_session(scope), receive, send)
        elif scope["method"] not in {"POST", "GET", "DELETE"}:
            await self.app(scope, receive, send)
        elif (session_id := headers.get(_SESSION_HEADER)) is not None:
            await self._continue(session_id, principal, scope, receive, send)
        else:
            await self._open(principal, scope, receive, send)

    async def _continue(
        self, session_id: str, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            is_own = await self.sessions.touch(session_id, principal)
            if not is_own and await self.sessions.alive(session_id):
                await self.journal.foreign(principal, "mcp_session")
            if is_own and scope["method"] == "DELETE":
                await self.subscriptions.end(principal, session_id)
        except CwmError as away:
            await _refuse_coded(scope, send, INTERNAL_ERROR, away)
            return
        if not is_own:
            await _refuse(scope, send, 404, INVALID_REQUEST, "Session not found: initialize again.")
        elif scope["method"] == "DELETE":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif scope["method"] == "POST":
            await self.app({**scope, AGENT_SESSION: session_id}, receive, send)
        elif not _takes_events(Headers(scope=scope).get("accept", "")):
            await _refuse(scope, send, 406, INVALID_REQUEST, "A GET must accept text/event-stream.")
        else:
            try:
                await self.streams.serve(session_id, principal, scope.get(CREDENTIAL), receive, send)
            except CwmError as away:
                await _refuse_coded(scope, send, INTERNAL_ERROR, away)

    async def _open(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request without a session id: only ``initialize`` is allowed, and its answer has the new id."""
        body = await _read(receive) if scope["method"] == "POST" else b""
        if body is None:
            message = f"An initialize request may have at most {_MAX_INITIALIZE_BYTES} bytes."
            await _refuse(scope, send, 413, INVALID_REQUEST, message)
            return
        try:
            method = _method(body) if body else None
        except ValueError:
            await _refuse(scope, send, 400, PARSE_ERROR, "The body is not JSON.")
            return
        if method != "initialize":
            await _refuse(
                scope, send, 400, INVALID_REQUEST, "Missing Mcp-Session-Id: initialize first, then send it."
            )
            return
        await self.app(scope, _replayed(body, receive), self._with_new_session(principal, scope, send))

    def _with_new_session(self, principal: Principal, scope: Scope, send: Send) -> Send:
        """A ``send`` that begins a session for a successful answer, or sends an error instead if that fails."""
        head: Message | None = None
        refused = False

        async def with_new_session(message: Message) -> None:
            nonlocal head, refused
            if message["type"] == "http.response.start":
                head = message
                return
            # The SDK sends status 200 before it looks at the message: only the body says whether that failed.
            if head is not None:
                start, head = head, None
                if _has_result(message.get("body", b"")):
                    try:
                        MutableHeaders(scope=start)[_SESSION_HEADER] = await self.sessions.begin(principal)
                    except CwmError as away:
                        refused = True
                        await _refuse_coded(scope, send, INTERNAL_ERROR, away)
                if not refused:
                    await send(start)
            if not refused:
                await send(message)

        return with_new_session


def _without_session(scope: Scope) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != _SESSION_HEADER.encode()]
    return {**scope, "headers": headers}


async def _read(receive: Receive) -> bytes | None:
    """The whole body; empty if the client disconnected, None as soon as it is too long for an initialize."""
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
    """The request's method. ValueError if the body is not JSON, or is nested too deep to parse."""
    try:
        request = json.loads(body)
    except RecursionError as nested:
        raise ValueError("nested too deep") from nested
    return request.get("method") if isinstance(request, dict) else None


def _has_result(answer: bytes) -> bool:
    """Whether a JSON-RPC answer, plain or as an event, is a result."""
    try:
        message = json.loads(answer.partition(b"data:")[2] or answer)
    except ValueError:
        return False
    return isinstance(message, dict) and "result" in message


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that first returns the body that was already read."""
    unread = [body]

    async def replay() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return replay


def _takes_events(accept: str) -> bool:
    media_types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return not media_types.isdisjoint({"text/event-stream", "text/*", "*/*"})


async def _refuse_coded(scope: Scope, send: Send, code: int, error: CwmError) -> None:
    headers = {"retry-after": str(error.retry_after_seconds)} if isinstance(error, LimitError) else None
    await _refuse(scope, send, _STATUS.get(error.kind, 401), code, error.published, error.as_dict(), headers)


async def _refuse(
    scope: Scope,
    send: Send,
    status: int,
    code: int,
    message: str,
    data: dict[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    response = JSONResponse(body, status_code=status, headers=headers)
    await response(scope, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
