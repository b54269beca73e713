"""Refuses request bodies over the limit before they are read completely."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cwm.domain.errors import InvalidParameterError
from cwm.transport.http.envelope import send_error

_LINGER_SECONDS: Final = 1.0
_DISCONNECT: Final[Message] = {"type": "http.disconnect"}


class BodyLimit:
    """ASGI middleware: 413 for a body of more than ``max_bytes``; then the connection is closed.

    A declared length is checked before any byte is read, an undeclared one once it exceeds the limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif (declared := _declared_length(scope)) is not None and declared > self.max_bytes:
            await self._refuse(scope["path"], receive, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads. Past the limit, it sees a disconnected client and can send nothing more."""
        byte_count = 0
        started = refused = False

        async def counting_receive() -> Message:
            nonlocal byte_count, refused
            if refused:
                return _DISCONNECT
            message = await receive()
            byte_count += len(message.get("body", b""))
            if byte_count <= self.max_bytes:
                return message
            refused = True
            if not started:
                await self._refuse(scope["path"], receive, send)
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

    async def _refuse(self, path: str, receive: Receive, send: Send) -> None:
        """Send the error at once, and discard for a moment what the client still sends.

        A socket that is closed with unread bytes is reset, and the client would never read the error.
        """
        error = InvalidParameterError(
            f"The request body is larger than {self.max_bytes} bytes.",
            field="body",
            max_bytes=self.max_bytes,
        )
        await send_error(send, path, error, 413, [(b"connection", b"close")], more=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def _declared_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None
