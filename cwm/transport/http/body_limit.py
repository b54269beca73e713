"""A request body over the limit is refused before it is read whole."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect

from cwm.domain.errors import InvalidParameterError
from cwm.transport.http.envelope import send_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_LINGER_SECONDS: Final = 1.0
_LEFT: Final[Message] = {"type": "http.disconnect"}


class BodyLimit:
    """ASGI middleware: 413 for a body of more than ``max_bytes``, the connection closed behind it.

    A declared length is judged before a byte is read, an undeclared one when it passes the limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif (declared := _declared_length(scope)) is not None and declared > self.max_bytes:
            await self._refuse(receive, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application read; past the limit it sees a client that left, and says no more."""
        read = 0
        started = refused = False

        async def counted() -> Message:
            nonlocal read, refused
            if refused:
                return _LEFT
            message = await receive()
            read += len(message.get("body", b""))
            if read <= self.max_bytes:
                return message
            refused = True
            if not started:
                await self._refuse(receive, send)
            return _LEFT

        async def noted(message: Message) -> None:
            nonlocal started
            if not refused or started:
                started = True
                await send(message)

        try:
            await self.app(scope, counted, noted)
        except ClientDisconnect:
            if not refused:
                raise

    async def _refuse(self, receive: Receive, send: Send) -> None:
        """Answer at once; what the client still writes meanwhile is thrown away for a moment.

        A socket closed on unread bytes is reset, and the client would never read why.
        """
        error = InvalidParameterError(
            f"The request body is larger than {self.max_bytes} bytes.",
            field="body",
            max_bytes=self.max_bytes,
        )
        await send_error(send, error, 413, [(b"connection", b"close")], more=True)
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
