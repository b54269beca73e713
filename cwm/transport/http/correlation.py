"""What belongs together: the lines of log and the spans of one HTTP request, and those of whoever sent it."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from http import HTTPMethod
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route
from structlog.contextvars import bound_contextvars

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cwm.ports.tracing import Carrier, Span, Tracer

ARRIVAL: Final = "cwm.arrival"
"""In the ASGI scope: the request's ``Arrival``. Absent where nothing is traced."""

# Asked every few seconds, by machines, for as long as the process lives.
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_PROPAGATED: Final = frozenset({b"traceparent", b"tracestate"})
_REQUEST_ID: Final = b"x-request-id"
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True)
class Arrival:
    """When a request came, in nanoseconds since the epoch, and what others found out about it.

    ``error`` is the code of what it was answered with, ``spanned`` whether it has a span of its own already.
    """

    started_ns: int = field(default_factory=time.time_ns)
    spanned: bool = False
    error: str | None = None


class Correlated:
    """ASGI middleware, the outermost: an id of the request in every line of log, one span for each request.

    A request to ``messages_at`` has the span of the message that it carries; its own only when it is refused
    before the message is read. What is asked of nobody but machines has none.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer, messages_at: str) -> None:
        self.app = app
        self.tracer = tracer
        self.messages_at = messages_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with bound_contextvars(request_id=_request_id(scope)):
            if not self.tracer.on or scope["path"] in _PROBES:
                await self.app(scope, receive, send)
            elif scope["path"] == self.messages_at:
                await self._carry(scope, receive, send)
            else:
                await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = scope[ARRIVAL] = Arrival()
        with self.tracer.request(_method(scope), _carrier(scope), _described(scope)) as span:
            answered = _Answered(send)
            await self.app(scope, receive, answered)
            _name(span, scope)
            _tell(span, answered.status, arrival)

    async def _carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = scope[ARRIVAL] = Arrival()
        answered = _Answered(send)
        with self.tracer.received(_carrier(scope)):
            await self.app(scope, receive, answered)
            if arrival.spanned or answered.status < 400:
                return
            name = f"{_method(scope)} {self.messages_at}"
            with self.tracer.request(name, {}, _described(scope), arrival.started_ns) as span:
                _tell(span, answered.status, arrival)


class _Answered:
    """A ``send`` that remembers the status; 500 until there is one."""

    def __init__(self, send: Send) -> None:
        self.status = 500
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def _request_id(scope: Scope) -> str:
    """The one it came with, if it looks like one."""
    for name, value in scope["headers"]:
        if name == _REQUEST_ID and _GIVEN_ID.fullmatch(given := str(value, "latin-1")):
            return given
    return secrets.token_hex(8)


def _carrier(scope: Scope) -> Carrier:
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _PROPAGATED}


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in HTTPMethod.__members__ else "HTTP"


def _described(scope: Scope) -> dict[str, Any]:
    """Neither path nor query: what stands in them is the caller's."""
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
    """The pattern of the path. FastAPI leaves it in the scope of its own routes only."""
    if isinstance(route := scope.get("route"), Route):
        return route.path_format
    endpoint, app = scope.get("endpoint"), scope.get("app")
    routes = () if endpoint is None or app is None else app.routes
    return next((r.path_format for r in routes if isinstance(r, Route) and r.endpoint is endpoint), None)


def _tell(span: Span, status: int, arrival: Arrival) -> None:
    """A refusal is the caller's business: only what is ours fails the span."""
    span.note({"http.response.status_code": status})
    if status >= 500:
        span.failed(arrival.error or str(status))
    elif arrival.error is not None:
        span.note({"error.type": arrival.error})
