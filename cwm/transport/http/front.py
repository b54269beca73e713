"""Checks, before everything else, that a request is meant for this gateway and that its page may call it.

A page of another site can reach a gateway through its visitor's browser: under a domain name that it points here
(DNS rebinding, visible in ``Host``), or across origins (visible in ``Origin``). Clients other than browsers send no
``Origin``, and in ``Host`` the name that they were configured with.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.domain.errors import SecurityError
from cwm.domain.web_origin import origin_of
from cwm.settings.urls import on_loopback
from cwm.transport.http.envelope import send_error

SECURITY_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Default headers of every response: it contains nothing that a browser should render, frame, sniff or cache."""

_METHODS: Final = ("GET", "POST", "DELETE", "OPTIONS")
# Headers that browser clients of MCP and of the APIs of OpenAI and Anthropic send.
_ALLOWED_HEADERS: Final = (
    "accept",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "authorization",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "cwm-session-id",
    "traceparent",
    "tracestate",
    "x-api-key",
)
_EXPOSED_HEADERS: Final = (
    "mcp-session-id",
    "cwm-session-id",
    "www-authenticate",
    "retry-after",
    "x-should-retry",
)
_RAW_HEADERS: Final = tuple((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items())
_HOST: Final = re.compile(r"(?:(?P<name>[a-z0-9._-]+)|\[(?P<v6>[0-9a-f:.]+)\])(?::\d{1,5})?")
_MISDIRECTED: Final = 421
_EXCERPT_BYTES: Final = 100


class Refusal(StrEnum):
    HOST = "host"
    ORIGIN = "origin"


OnRefusal = Callable[[Refusal, str], Awaitable[None]]
"""Called for each refusal with its reason and the header's value, shortened."""


class Front:
    """ASGI middleware, the outermost: 421 for requests to another host, 403 for pages of other sites.

    Every response carries :data:`SECURITY_HEADERS`. This gateway's hosts are loopback, the address at which the
    request arrived, and ``hosts``, where ``*.example.com`` matches every name below it. Its own pages and those of
    ``origins`` may call it and read its responses.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str], on_refusal: OnRefusal
    ) -> None:
        self._app = _secured(app)
        self._hosts = frozenset(host for host in hosts if "*" not in host)
        self._patterns = tuple(host for host in hosts if "*" in host)
        self._origins = frozenset(origins)
        self._on_refusal = on_refusal
        self._crossing = _secured(_cors(app, origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if hosts and (len(hosts) > 1 or not self._is_ours(_name_of(hosts[0]), scope)):
            await self._refuse(Refusal.HOST, hosts, scope, send)
        elif not origins or (len(origins) == 1 and hosts and is_own(origins[0], hosts[0])):
            await self._app(scope, receive, send)
        elif len(origins) == 1 and origin_of(origins[0].decode("latin-1").lower()) in self._origins:
            await self._crossing(scope, receive, send)
        else:
            await self._refuse(Refusal.ORIGIN, origins, scope, send)

    def _is_ours(self, host: str, scope: Scope) -> bool:
        if host in self._hosts or on_loopback(host):
            return True
        server = scope.get("server")
        if server and host == server[0]:
            return True
        return any(fnmatchcase(host, pattern) for pattern in self._patterns)

    async def _refuse(self, why: Refusal, values: Sequence[bytes], scope: Scope, send: Send) -> None:
        excerpt = b", ".join(values)[:_EXCERPT_BYTES].decode("latin-1")
        await self._on_refusal(why, excerpt)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if why is Refusal.HOST:
            error, status = (
                SecurityError("This gateway does not have this host name; see CWM_ALLOWED_HOSTS."),
                _MISDIRECTED,
            )
        else:
            error, status = (
                SecurityError("Pages of this origin are not allowed; see CWM_ALLOWED_ORIGINS."),
                403,
            )
        await send_error(send, scope["path"], error, status, _RAW_HEADERS)


def _cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=_METHODS,
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=_EXPOSED_HEADERS,
        max_age=600,
    )


def _secured(app: ASGIApp) -> ASGIApp:
    async def secured(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                additions = [header for header in _RAW_HEADERS if header[0] not in present]
                message = {**message, "headers": headers + additions}
            await send(message)

        await app(scope, receive, with_headers)

    return secured


def _name_of(host: bytes) -> str:
    """The host name or address in a ``Host`` header; empty if it is neither."""
    match = _HOST.fullmatch(host.decode("latin-1").strip().lower())
    return "" if match is None else match["name"] or match["v6"]


def is_own(origin: bytes, host: bytes) -> bool:
    """Whether the page came from this gateway. Its scheme may differ, because a proxy in front may terminate TLS."""
    page = origin_of(origin.decode("latin-1").lower())
    if page is None:
        return False
    scheme, _, rest = page.partition("://")
    own = host.decode("latin-1").strip().lower()
    return page == origin_of(f"{scheme}://{own}") or rest == own
