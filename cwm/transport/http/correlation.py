"""Correlates the log lines and spans of one HTTP request with each other and with the sender's trace."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from http import HTTPMethod
from typing import Any, Final

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from cwm.ports.tracing import Carrier, Span, Tracer
from cwm.transport.http.errors import is_anthropic

ARRIVAL: Final = "cwm.arrival"
"""Key in the ASGI scope of the request's ``Arrival``. Absent when the request is not traced."""

# Polled by machines every few seconds for as long as the process lives.
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_PROPAGATED: Final = frozenset({b"traceparent", b"tracestate"})
_REQUEST_ID: Final = b"x-request-id"
_VALID_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True)
class Arrival:
    """When a request arrived, in nanoseconds since the epoch, and what inner layers report about it.

    ``error`` is the code of the error it was answered with; ``spanned`` says whether it already has a span.
    """

    started_ns: int = field(default_factory=time.time_ns)
    spanned: bool = False
    error: str | None = None


class Correlated:
    """ASGI middleware, the outermost: adds the request's id to every log line, and makes one span per request.

    A request to ``messages_at`` gets its span from the message that it carries, and one of its own only when it is
    refused before the message is read. Machine-only endpoints have no span.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer, messages_at: str) -> None:
        self.app = app
        self.tracer = tracer
        self.messages_at = messages_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        if is_anthropic(scope["path"]):
            send = _named(send, request_id)
        with bound_contextvars(request_id=request_id):
            if not self.tracer.on or scope["path"] in _PROBES:
                await self.app(scope, receive, send)
            elif scope["path"] == self.messages_at:
                await self._carry(scope, receive, send)
            else:
                await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = scope[ARRIVAL] = Arrival()
        with self.tracer.request(_method(scope), _carrier(scope), _described(scope)) as span:
            response = _Answered(send)
            await self.app(scope, receive, response)
            _name(span, scope)
            _tell(span, response.status, arrival)

    async def _carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = scope[ARRIVAL] = Arrival()
        response = _Answered(send)
        with self.tracer.received(_carrier(scope)):
            await self.app(scope, receive, response)
            if arrival.spanned or response.status < 400:
                return
            name = f"{_method(scope)} {self.messages_at}"
            with self.tracer.request(name, {}, _described(scope), arrival.started_ns) as span:
                _tell(span, response.status, arrival)


class _Answered:
    """A ``send`` that records the status; 500 until one is sent."""

    def __init__(self, send: Send) -> None:
        self.status = 500
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def _named(send: Send, request_id: str) -> Send:
    """A ``send`` that tells Anthropic's clients the request's id, which their errors show."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"request-id", request_id.encode())]}
        await send(message)

    return named


def _request_id(scope: Scope) -> str:
    """The id that the request carries if it is well-formed, else a new one."""
    for name, value in scope["headers"]:
        if name == _REQUEST_ID and _VALID_ID.fullmatch(request_id := str(value, "latin-1")):
            return request_id
    return secrets.token_hex(8)


def _carrier(scope: Scope) -> Carrier:
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _PROPAGATED}


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in HTTPMethod.__members__ else "HTTP"


def _described(scope: Scope) -> dict[str, Any]:
    """Attributes of the span. Path and query are left out, because the caller chooses them."""
    return {
        "http.request.method": _method(scope),
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }


def _name(span: Span, scope: Scope) -> None:
    if (route := _route(scope)) is not None:
        span.rename(f"{_method(scope)} {route}")
        span.note({"http.route": route})


def _route(scope: Scope) -> str | None:
    """The pattern of the path. FastAPI stores it in the scope for its own routes only."""
    if isinstance(route := scope.get("route"), Route):
        return route.path_format
    endpoint, app = scope.get("endpoint"), scope.get("app")
    routes = () if endpoint is None or app is None else app.routes
    return next((r.path_format for r in routes if isinstance(r, Route) and r.endpoint is endpoint), None)


def _tell(span: Span, status: int, arrival: Arrival) -> None:
    """Note the result on the span. Only the gateway's own failures (5xx) fail the span, refusals do not."""
    span.note({"http.response.status_code": status})
    if status >= 500:
        span.failed(arrival.error or str(status))
    elif arrival.error is not None:
        span.note({"error.type": arrival.error})
