"""Limits the size of a request's head and the time in which a request must arrive.

uvicorn itself waits for ever for the rest of a request, and stores headers of any size.
"""

from __future__ import annotations

import asyncio
from asyncio.events import TimerHandle
from http import HTTPStatus
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Proxies and browsers open connections before they have anything to send.
_SILENT_SECONDS: Final = 75.0


class HeadTooLargeError(Exception):
    """Stops the parser, which then treats the request as invalid."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Sends 431 for a head that is too large and 408 for a request that takes too long, then closes the connection."""

    max_head_bytes: ClassVar[int]
    head_seconds: ClassVar[float]
    body_seconds: ClassVar[float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        self._head_too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(_SILENT_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            # The parser buffers a header until it is complete, so count the raw bytes.
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._wait(self.head_seconds)

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_head_bytes:
            self._head_too_large = True
            raise HeadTooLargeError
        self._wait(self.body_seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called for a request that the parser could not read, or at which it was stopped."""
        self._in_head = False
        if self._head_too_large:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self._stop_waiting()
            super().send_400_response(msg)

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self.flow.read_paused:
            # The client waits for the gateway, not the gateway for the client.
            self._wait(self.body_seconds)
        elif self._begun:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.close()

    @property
    def _begun(self) -> bool:
        return self._in_head or self.cycle is not None

    def _refuse(self, status: HTTPStatus) -> None:
        """Send the status, unless another response is being sent on this connection, and close it."""
        self._stop_waiting()
        self._in_head = False
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            text = status.phrase.encode()
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, text, len(text), text)
            )
        self.transport.close()


def bounded(max_head_bytes: int, head_seconds: float, body_seconds: float) -> type[BoundedHttpProtocol]:
    """A protocol class with these limits, to be passed to uvicorn."""
    bounds = {"max_head_bytes": max_head_bytes, "head_seconds": head_seconds, "body_seconds": body_seconds}
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), bounds)
