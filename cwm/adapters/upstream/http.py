"""Streamable HTTP towards upstreams: what went wrong reaches the request it happened to, and no other.

The SDK's transport ends a whole session, with everybody's requests, when one POST meets a network error. Here
such an error becomes a JSON-RPC answer of our own making: only its request fails, and it says whether the
upstream can have seen it.
"""

from __future__ import annotations

import json
from typing import Final
from uuid import uuid4

import httpx2

AWAY: Final = -32901
EXPIRED: Final = -32902
LOST: Final = -32903

OURS: Final = uuid4().hex
"""In ``data`` of the answers made here, so that no upstream's own error is taken for one."""

_SESSION_HEADER: Final = "mcp-session-id"
# Servers close idle connections after five seconds; leaving them first avoids writing into a dead one.
_KEEPALIVE_SECONDS: Final = 4.0
_IDLE_CONNECTIONS: Final = 32
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_UNKNOWN_SESSION: Final = 404


def connection_pool(*, encrypted: bool) -> httpx2.AsyncHTTPTransport:
    """The connections to one upstream, for all sessions with it."""
    return httpx2.AsyncHTTPTransport(
        # Reading the trust store takes time and memory that plain HTTP has no use for.
        verify=encrypted,
        trust_env=False,
        limits=httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=_IDLE_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        ),
    )


class SessionHttp(httpx2.AsyncBaseTransport):
    """One session's way through the pool: knows its id, says who asks, tells what went wrong.

    ``authorization`` is sent with every request and may be set anew before each.
    """

    def __init__(self, pool: httpx2.AsyncHTTPTransport, session_id: str | None) -> None:
        self._pool = pool
        self.session_id = session_id
        self.authorization: str | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.session_id is not None:
            request.headers[_SESSION_HEADER] = self.session_id
        if self.authorization is not None:
            request.headers["authorization"] = self.authorization
        if request.method != "POST":
            return await self._pool.handle_async_request(request)
        try:
            response = await self._pool.handle_async_request(request)
        except _NOT_SENT as failed:
            return _answer(AWAY, f"it cannot be reached ({type(failed).__name__})")
        except httpx2.TransportError as failed:
            return _answer(LOST, f"the connection broke ({type(failed).__name__})")
        return await self._read(response)

    async def _read(self, response: httpx2.Response) -> httpx2.Response:
        status = response.status_code
        if status in {401, 403}:
            await response.aclose()
            return _answer(AWAY, f"it refuses our credentials (HTTP {status})")
        if status >= 500:
            await response.aclose()
            return _answer(LOST, f"it answers HTTP {status}")
        if self.session_id is None:
            self.session_id = response.headers.get(_SESSION_HEADER)
        elif status == _UNKNOWN_SESSION or await _speaks_of_the_session(response):
            await response.aclose()
            return _answer(EXPIRED, "it does not know the session any more")
        return response

    async def aclose(self) -> None:
        """The pool is not this session's to close."""


async def _speaks_of_the_session(response: httpx2.Response) -> bool:
    """By the protocol an unknown session is 404, by a widespread habit a 400 that says so."""
    return response.status_code == 400 and b"session" in (await response.aread()).lower()


def _answer(code: int, message: str) -> httpx2.Response:
    error = {"code": code, "message": message, "data": OURS}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(503, headers={"content-type": "application/json"}, content=body)
