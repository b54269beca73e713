"""Bounds request bodies: the bytes of each, and those of all that this process holds, before they are read completely."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.domain.errors import CwmError, InvalidParameterError, LimitError
from cwm.domain.json_bounds import MOST_VALUES
from cwm.services.access.body_room import HeldBody, body_key
from cwm.services.access.limits import Limits
from cwm.services.aside import held_by_its_work
from cwm.transport.http.envelope import send_whole
from cwm.transport.http.errors import error_headers, face_body, status_of
from cwm.transport.http.request_keys import MOST_BODY_VALUES, PRINCIPAL

_STRANGERS_BYTES: Final = 64 * 1024
_TOO_LARGE: Final = 413
_LINGER_SECONDS: Final = 1.0
_DISCONNECT: Final[Message] = {"type": "http.disconnect"}
_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")


class BodyLimit:
    """ASGI middleware, behind authentication: refuses bodies that are too large, or for which there is no room.

    413 for more than ``max_bytes``, without credentials more than 64 KiB; 429 where ``limits.bodies`` has no room.
    A declared length is checked before any byte is read, each byte as it arrives. A body's room is given back when its request
    and all work that outlasts it have ended, as what arrived may be sent again until then. ``most_values``: see
    :func:`cwm.domain.json_bounds.require_bounded`.
    """

    def __init__(self, app: ASGIApp, limits: Limits, max_bytes: int, most_values: int = MOST_VALUES) -> None:
        self.app = app
        self.limits = limits
        self.max_bytes = max_bytes
        self.most_values = most_values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[MOST_BODY_VALUES] = self.most_values
        held = HeldBody(self.limits.bodies, body_key(scope.get(PRINCIPAL)))
        if (refusal := await self._refusal(scope, declared_length(scope) or 0, 0)) is not None:
            await self._refuse(scope, refusal, receive, send)
            return
        with held_by_its_work(held.release):
            await self._count(held, scope, receive, send)

    async def _count(self, held: HeldBody, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads. Past a bound, it sees a disconnected client and can send nothing more."""
        started = refused = False

        async def counting_receive() -> Message:
            nonlocal refused
            if refused:
                return _DISCONNECT
            message = await receive()
            if not (size := len(message.get("body", b""))):
                return message
            refusal = await self._refusal(scope, size, held.size)
            if refusal is None:
                held.grow(size)
                return message
            refused = True
            if not started:
                await self._refuse(scope, refusal, receive, send)
            return _DISCONNECT

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if not refused or started:
                started = True
                await send(message)

        try:
            await self.app(scope, counting_receive, guarded_send)
        except ClientDisconnect:
            if not refused:
                raise

    async def _refusal(self, scope: Scope, size: int, held: int) -> CwmError | None:
        """Why a body of which so much is held may not have ``size`` bytes more."""
        principal = scope.get(PRINCIPAL)
        most = self.max_bytes if principal is not None else min(self.max_bytes, _STRANGERS_BYTES)
        if held + size > most:
            return InvalidParameterError(
                f"The request body is larger than {most} bytes.", field="body", max_bytes=most
            )
        try:
            if size:
                await self.limits.require_room(principal, size)
        except CwmError as refused:
            return refused
        return None

    async def _refuse(self, scope: Scope, error: CwmError, receive: Receive, send: Send) -> None:
        """Send the error at once, and discard for a moment what the client still sends.

        A socket that is closed with unread bytes is reset, and the client would never read the error. Where there is no room for a
        body whose length is declared and allowed, the server itself discards the rest, and the connection stays.
        """
        path = scope["path"]
        if isinstance(error, LimitError) and declared_length(scope):
            headers = [_JSON, *error_headers(error)]
            await send_whole(send, status_of(error, path), headers, face_body(error, path))
            return
        status = _TOO_LARGE if isinstance(error, InvalidParameterError) else status_of(error, path)
        headers = [_JSON, _CLOSE, *error_headers(error)]
        await send_whole(send, status, headers, face_body(error, path, status), more=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def declared_length(scope: Scope) -> int | None:
    """The length that the request says its body has; 0 of one without a body, None of one that comes in pieces."""
    length = None
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value) if value.isdigit() else None
    return 0 if length is None else length
