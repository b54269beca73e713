"""Streamable HTTP to upstreams: a network error fails only the request that it happened to.

The SDK's transport ends the whole session, with all its requests, when one POST meets a network error. Here
the error becomes a JSON-RPC error response made by CWM: only its own request fails, and the error says whether the
upstream may have received it. A request that is given up returns its connection: the SDK would keep it open for a
response that servers of the handshake era do not send to a cancelled request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final
from uuid import uuid4

import httpx2
import mcp_types as types
from mcp import MCPError
from pydantic import ValidationError

from cwm.adapters import certificates
from cwm.adapters.http.bounded import TooLargeError, decode, read_bounded
from cwm.adapters.http.sockets import on_asyncio
from cwm.adapters.telemetry.redaction import MASK, SHORTEST
from cwm.adapters.upstream.destinations import LinkLocalGuard
from cwm.background import BackgroundTasks
from cwm.domain.addresses import without_inner_addresses
from cwm.domain.upstream import Bounds
from cwm.ports.tracing import UNTRACED, Carrier
from cwm.ports.upstream import (
    OnLog,
    UpstreamAwayError,
    UpstreamBusyError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamRejectedError,
)

_OUR_CODE: Final = -32901
_OURS: Final = uuid4().hex
_FAULTS: Final = {
    each.__name__: each
    for each in (
        UpstreamAwayError,
        UpstreamBusyError,
        UpstreamDeniedError,
        UpstreamExpiredError,
        UpstreamLostError,
        UpstreamOversizeError,
        UpstreamRejectedError,
    )
}


def error_of(fault: type[UpstreamError], message: str, **facts: Any) -> types.ErrorData:
    """A JSON-RPC error made here, which an upstream's own error cannot be mistaken for; :func:`fault_of` reads it."""
    return types.ErrorData(code=_OUR_CODE, message=message, data={_OURS: fault.__name__, **facts})


def fault_of(error: MCPError) -> UpstreamError | None:
    """The port's error for an error made here; None for an upstream's own error."""
    facts = dict(error.data) if isinstance(error.data, dict) else {}
    name = facts.pop(_OURS, None)
    if name in _FAULTS:
        return _FAULTS[name](error.message, **facts)
    return None if name is None else UpstreamRefusedError(types.INTERNAL_ERROR, error.message)


_SESSION_HEADER: Final = "mcp-session-id"
_VERSION_HEADER: Final = "mcp-protocol-version"
_ABOUT_SESSION: Final = re.compile(
    rb"session[ _-]?id|session[^.]{0,200}(not found|unknown|expired|terminated)|(unknown|invalid|expired) session",
    re.IGNORECASE,
)
_SEARCHED_BYTES: Final = 16 * 1024
# Servers close idle connections after five seconds; closing earlier avoids writing to a dead one.
_KEEPALIVE_SECONDS: Final = 4.0
_IDLE_CONNECTIONS: Final = 32
_END_SECONDS: Final = 2.0
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_UNKNOWN_SESSION: Final = 404
_BUSY: Final = frozenset({429, 503})
_DENIED: Final = frozenset({401, 403})
_LONGEST_WORDS: Final = 500
# The values of all other headers are masked in what an upstream says.
_PUBLIC_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "user-agent"}
    | {"mcp-method", "mcp-name", _VERSION_HEADER}
)


def connection_pool(*, encrypted: bool, link_local: bool = False) -> httpx2.AsyncHTTPTransport:
    """The connections of all sessions with one upstream; link-local addresses need ``link_local``."""
    return on_asyncio(
        httpx2.AsyncHTTPTransport(
            # Plain HTTP saves the time and memory of reading the trust store.
            verify=encrypted,
            trust_env=False,
            limits=httpx2.Limits(
                max_connections=None,
                max_keepalive_connections=_IDLE_CONNECTIONS,
                keepalive_expiry=_KEEPALIVE_SECONDS,
            ),
        ),
        None if link_local else LinkLocalGuard(),
    )


@dataclass(slots=True)
class PendingRequest:
    """One request: the caller's credentials and capabilities, and the response while it is read.

    ``authorization`` is empty for a caller without credentials, and None for the session's own requests.
    ``capabilities`` are those of the caller's client. ``on_log`` gets what the upstream logs meanwhile.
    """

    authorization: str | None = None
    capabilities: Mapping[str, Any] | None = None
    on_log: OnLog | None = None
    answer: httpx2.Response | None = None
    abandoned: bool = False

    async def give_up(self) -> None:
        self.abandoned = True
        if self.answer is not None:
            await self.answer.aclose()


PENDING: Final[ContextVar[PendingRequest | None]] = ContextVar("PENDING", default=None)
"""The request of the current task: the SDK sends each message in the context of the task that made the request."""


class SessionHttp(httpx2.AsyncBaseTransport):
    """One session's transport: adds session id, credentials and trace headers, and turns failures into errors.

    ``authorization`` is sent with the session's own requests. ``on_stream_end`` is called when the stream of
    the upstream's notifications ends: those sent until the next stream opens are lost. ``carrier`` returns
    the trace headers of the request being sent.
    """

    def __init__(
        self,
        pool: httpx2.AsyncHTTPTransport,
        session_id: str | None,
        on_stream_end: Callable[[], None],
        carrier: Callable[[], Carrier] = UNTRACED.carrier,
        message_bytes: int = Bounds().message_bytes,
    ) -> None:
        self._pool = pool
        self._message_bytes = message_bytes
        self._on_stream_end = on_stream_end
        self._carrier = carrier
        self._ending = BackgroundTasks()
        self.session_id = session_id
        self.authorization: str | None = None
        self.version: str | None = None
        self.hears = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pending = PENDING.get()
        if pending is not None and pending.abandoned and request.method == "GET":
            return httpx2.Response(410)
        self._stamp(request, pending)
        if request.method != "POST":
            return await self._without_message(request)
        try:
            response = await self._read(request, await self._pool.handle_async_request(request), pending)
        except _NOT_SENT as error:
            fault = certificates.fault(error)
            reason = type(error).__name__ if fault is None else f"it {fault}"
            return _answer(UpstreamAwayError, f"it cannot be reached ({reason})")
        except TooLargeError:
            return _answer(UpstreamOversizeError, oversize(self._message_bytes))
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            return _answer(UpstreamLostError, f"the connection broke ({type(error).__name__})")
        if pending is not None and pending.answer is None:
            pending.answer = response
        return response

    async def _without_message(self, request: httpx2.Request) -> httpx2.Response:
        """Opens the stream of notifications, or ends the session."""
        response = await self._pool.handle_async_request(request)
        if request.method != "GET":
            await read_bounded(response, self._message_bytes)
        elif response.is_success and _is_stream(response):
            _decode_if_encoded(response)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            self.hears = True
            response.stream = _OwnMessages(response.stream, self._stream_ended)
        return response

    def _stamp(self, request: httpx2.Request, pending: PendingRequest | None) -> None:
        if self.session_id is not None:
            request.headers[_SESSION_HEADER] = self.session_id
        caller_authorization = None if pending is None else pending.authorization
        authorization = self.authorization if caller_authorization is None else caller_authorization
        if authorization:
            request.headers["authorization"] = authorization
        self.version = request.headers.get(_VERSION_HEADER, self.version)
        request.headers.update(self._carrier())

    async def _read(
        self, request: httpx2.Request, response: httpx2.Response, pending: PendingRequest | None
    ) -> httpx2.Response:
        status = response.status_code
        if not _is_stream(response):
            # Read here, so that an error fails only this request.
            await read_bounded(response, self._message_bytes)
        elif status == 200:
            _decode_if_encoded(response)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _ReadToItsEnd(response.stream, self._ending, pending)
        if status >= 400:
            failure = _failure(request, response, in_session=self.session_id is not None)
            await response.aclose()
            return failure
        if self.session_id is None:
            self.session_id = response.headers.get(_SESSION_HEADER)
        return response

    def _stream_ended(self) -> None:
        self.hears = False
        self._on_stream_end()

    async def aclose(self) -> None:
        """Does nothing: the pool belongs to all sessions."""


class StraightClient(httpx2.AsyncClient):
    """Passes requests directly to its transport, because the rest of httpx's client costs time that tool calls save.

    Once an upstream has set cookies, the full client is used.
    """

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        if options.keys() - {"json", "headers"} or self.cookies:
            return super().build_request(method, url, **options)
        headers = self.headers.copy()
        headers.update(options.get("headers"))
        request = httpx2.Request(method, _parsed(str(url)), json=options.get("json"), headers=headers)
        request.extensions["timeout"] = self.timeout.as_dict()
        return request

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self.cookies or not options.get("stream"):
            return await super().send(request, **options)
        response = await self._transport.handle_async_request(request)
        response.request = request
        if "set-cookie" in response.headers:
            self.cookies.extract_cookies(response)
        if response.has_redirect_location:
            response.next_request = self._build_redirect_request(request, response)
        return response


_parsed: Final = lru_cache(httpx2.URL)


class _OwnMessages(httpx2.AsyncByteStream):
    """The stream of an upstream's notifications. A network error ends it normally, so that the SDK opens it again."""

    def __init__(self, stream: httpx2.AsyncByteStream, on_stream_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_stream_end = on_stream_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except httpx2.TransportError:
            pass
        self._on_stream_end()

    async def aclose(self) -> None:
        await self._stream.aclose()


# Bypass (decision 0028): the SDK would open a new connection to the upstream for every call.
class _ReadToItsEnd(httpx2.AsyncByteStream):
    """A response stream that is read to its end in the background after the SDK closes it.

    The SDK closes it as soon as it has the answer, just before the end; the connection could then not be reused, and
    every call would open one. If the request was given up (the reader is cancelled or still waits), it closes at once.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, ending: BackgroundTasks, pending: PendingRequest | None
    ) -> None:
        self._stream = stream
        self._parts = aiter(stream)
        self._ending = ending
        self._pending = pending
        self._has_more = True

    # Not a generator: httpx would close it together with the response.
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._has_more = False
        part = await anext(self._parts)
        self._has_more = True
        return part

    async def aclose(self) -> None:
        task = asyncio.current_task()
        given_up = self._pending is not None and self._pending.abandoned
        if self._has_more and not given_up and task is not None and not task.cancelling():
            self._ending.start(self._end())
        else:
            await self._stream.aclose()

    async def _end(self) -> None:
        try:
            with suppress(httpx2.TransportError, TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    async for _ in self:
                        pass
        finally:
            await self._stream.aclose()


def oversize(most: int) -> str:
    return f"its answer has more than {most} bytes"


def _decode_if_encoded(response: httpx2.Response) -> None:
    """The SDK bounds each event of a stream, but decodes what has arrived without a pause."""
    if "content-encoding" in response.headers:
        decode(response)


def _is_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")


def _failure(request: httpx2.Request, response: httpx2.Response, *, in_session: bool) -> httpx2.Response:
    """The answer in place of an HTTP error: the upstream's own JSON-RPC error, or one that says what the status means."""
    status = response.status_code
    content = b"" if _is_stream(response) else response.content
    own_error = _own_error(content)
    says = _words(request, content if own_error is None else own_error.error.message.encode())
    words = f"HTTP {status}: {says}" if says else f"HTTP {status}"
    if status in _DENIED:
        return _answer(UpstreamDeniedError, f"it refuses our credentials ({words})")
    if status in _BUSY:
        retry_after = _retry_after(response)
        message = f"it takes no requests now ({words})"
        return _answer(UpstreamBusyError, message, status=status, retry_after=retry_after)
    # The protocol's status for an unknown session is 404, but many servers answer 400 with a text.
    about_session = _ABOUT_SESSION.search(content, 0, _SEARCHED_BYTES) is not None
    request_id = json.loads(request.content).get("id")
    answers = own_error is not None and own_error.id is not None and own_error.id == request_id
    if in_session and (
        (status == _UNKNOWN_SESSION and not (answers and not about_session))
        or (status == 400 and about_session)
    ):
        return _answer(UpstreamExpiredError, f"it no longer knows the session ({words})")
    if own_error is not None:
        return _json_answer(own_error.error)
    if status >= 500:
        return _answer(UpstreamLostError, f"it answers {words}")
    return _answer(UpstreamRejectedError, f"it answers {words}", status=status)


def _own_error(content: bytes) -> types.JSONRPCError | None:
    try:
        message = types.jsonrpc_message_adapter.validate_json(content, by_name=False)
    except ValidationError:
        return None
    return message if isinstance(message, types.JSONRPCError) else None


def _words(request: httpx2.Request, content: bytes) -> str:
    """What an upstream says in a body, in short and without the request's secrets; empty for a page of HTML."""
    text = " ".join(content[: 2 * _LONGEST_WORDS].decode(errors="replace").split())
    if text.startswith("<"):
        return ""
    for name, value in request.headers.items():
        if name not in _PUBLIC_HEADERS:
            for secret in (value, value.rpartition(" ")[2]):
                text = text.replace(secret, MASK) if len(secret) >= SHORTEST else text
    return without_inner_addresses(text[:_LONGEST_WORDS])


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds to wait, of a number or a date in ``Retry-After``."""
    value = response.headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def _answer(fault: type[UpstreamError], message: str, **facts: Any) -> httpx2.Response:
    return _json_answer(error_of(fault, message, **facts))


def _json_answer(error: types.ErrorData) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_unset=True)}
    body = json.dumps(message).encode()
    return httpx2.Response(503, headers={"content-type": "application/json"}, content=body)
