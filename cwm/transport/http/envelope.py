"""Reads requests and sends responses over plain ASGI, without a framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from cwm.domain.errors import CwmError
from cwm.domain.json_bounds import MOST_VALUES, require_bounded
from cwm.threads import aside
from cwm.transport.http.errors import error_body, error_headers, status_of
from cwm.transport.http.request_keys import MOST_BODY_VALUES

SESSION_HEADER: Final = "cwm-session-id"
BRANCH_HEADER: Final = "cwm-branch"
CONTINUE_HEADER: Final = "cwm-continue"
CAPTURE_HEADER: Final = "cwm-capture"
VISIBILITY_HEADER: Final = "cwm-visibility"
_JSON: Final = (b"content-type", b"application/json")
_NOT_FORWARDED: Final = frozenset(
    {
        SESSION_HEADER,
        BRANCH_HEADER,
        CONTINUE_HEADER,
        CAPTURE_HEADER,
        VISIBILITY_HEADER,
        "authorization",
        "cookie",
        "cwm-token-ids",
        "x-api-key",
    }
)
# The gateway's own server sets these.
_NOT_RETURNED: Final = frozenset({b"date", b"server", b"content-length", b"cwm-token-ids"})


class ClientLeftError(Exception):
    """The client disconnected before its request was complete."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name; the values of a repeated header are joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _NOT_FORWARDED}


def target_of(scope: Scope, path: str) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def body_of(scope: Scope, receive: Receive, part: int = 1) -> bytes:
    """The whole body of a request. CWM-1003 for JSON that has more than one in ``part`` of the values that a body may have."""
    body = await _whole(receive)
    most = scope.get(MOST_BODY_VALUES, MOST_VALUES) // part
    await aside(len(body), partial(require_bounded, body, most))
    return body


async def _whole(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def returned(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The engine's headers for the client."""
    return [(name, value) for name, value in headers if name.lower() not in _NOT_RETURNED]


async def send_whole(
    send: Send,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    content: bytes,
    *,
    more: bool = False,
) -> None:
    """Send a complete response; ``more`` keeps it open after its last byte."""
    length = (b"content-length", b"%d" % len(content))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content, "more_body": more})


async def send_error(
    send: Send,
    path: str,
    error: CwmError,
    status: int | None = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    more: bool = False,
) -> None:
    """Send a coded error in the format of the path's API; ``status`` overrides the one of the error's kind."""
    out = [_JSON, *error_headers(error), *headers]
    status = status or status_of(error, path)
    await send_whole(send, status, out, error_body(error, path, status), more=more)
