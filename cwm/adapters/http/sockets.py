"""Connections for httpx that take less CPU time than httpcore's own.

httpcore writes a request's head and body separately, one packet each, which costs both ends; here they leave
together. httpcore also runs every read and write through anyio with a deadline; here data that has already arrived
is returned at once.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import httpcore2
import httpx2

from cwm.adapters.http.lookups import Lookups

_MOST_UNSENT_BYTES: Final = 64 * 1024
_MOST_UNREAD_BYTES: Final = 256 * 1024
# Of one name at once.
_LOOKUPS: Final = 4


# Bypass (decision 0028): connections over asyncio in place of httpcore's own over anyio.
class AsyncioBackend(httpcore2.AsyncNetworkBackend):
    """TCP and TLS over the running loop's own transports."""

    def __init__(self) -> None:
        self._lookups = Lookups()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        local = None if local_address is None else (local_address, 0)
        with _raising(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            async with asyncio.timeout(timeout):
                transport, wire = await self._connected(host, port, local)
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return _Connection(wire)

    async def sleep(self, seconds: float) -> None:
        """Pause between two of httpcore's attempts to connect."""
        await asyncio.sleep(seconds)

    async def _connected(
        self, host: str, port: int, local: tuple[str, int] | None
    ) -> tuple[asyncio.Transport, _Wire]:
        """Connect to the first address of ``host`` that accepts. Raises the last one's OSError.

        The name is resolved first: uvloop's ``create_connection`` leaves the error of a name unread when it is cancelled.
        """
        loop = asyncio.get_running_loop()
        failure = OSError(f"{host} has no address")
        for *_, address in await self._lookups.look_up(host, port, bounds={host: _LOOKUPS}):
            try:
                return await loop.create_connection(_Wire, str(address[0]), port, local_addr=local)
            except OSError as error:
                failure = error
        raise failure


class _Wire(asyncio.Protocol):
    """The received bytes that are still unread, and whether the connection can receive and send."""

    def __init__(self) -> None:
        self.unread = bytearray()
        self.ended = False
        self.lost = False
        self.fault: Exception | None = None
        self.transport: asyncio.Transport
        self._reading = True
        self._arrival: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not of an asyncio class.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.unread += data
        if len(self.unread) > _MOST_UNREAD_BYTES and self._reading:
            self._reading = False
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self.lost, self.fault = True, True, exc
        self._wake()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def something(self) -> None:
        """Wait until there are bytes to read, or the connection has ended."""
        if not self.unread and not self.ended:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival

    def take(self, most: int) -> bytes:
        data = bytes(self.unread[:most])
        del self.unread[:most]
        if not self._reading and len(self.unread) <= _MOST_UNREAD_BYTES // 2 and not self.ended:
            self._reading = True
            self.transport.resume_reading()
        return data

    async def room(self) -> None:
        await self._writable.wait()

    @property
    def has_room(self) -> bool:
        return self._writable.is_set()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._arrival = None


class _Connection(httpcore2.AsyncNetworkStream):
    """Buffers writes until the request is complete, the response is read, or the buffer has 64 KiB."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._unsent = b""
        self._timeout: float | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        # A peer that closes early may have sent an error response: read it even if the write failed.
        with suppress(httpcore2.WriteError):
            await self._flush()
        wire = self._wire
        if not wire.unread and not wire.ended:
            with _raising(httpcore2.ReadTimeout, httpcore2.ReadError):
                async with asyncio.timeout(timeout):
                    await wire.something()
        if not wire.unread and wire.fault is not None:
            raise httpcore2.ReadError(str(wire.fault)) from wire.fault
        return wire.take(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """Add to the buffer. httpcore ends a body of known length with an empty write, which flushes it."""
        self._unsent += buffer
        self._timeout = timeout
        if not buffer or len(self._unsent) >= _MOST_UNSENT_BYTES:
            await self._flush()

    async def aclose(self) -> None:
        # Close without waiting for the peer; one iteration of the loop closes the socket.
        if not self._wire.lost:
            self._wire.transport.abort()
            await asyncio.sleep(0)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore2.AsyncNetworkStream:
        wire, loop = self._wire, asyncio.get_running_loop()
        await self._flush()
        with _raising(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            try:
                async with asyncio.timeout(timeout):
                    secured = await loop.start_tls(
                        wire.transport, wire, ssl_context, server_hostname=server_hostname
                    )
            except BaseException:
                await self.aclose()
                raise
        if secured is None:
            raise httpcore2.ConnectError("the connection was lost while TLS began")
        wire.transport = secured
        return self

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "is_readable":
                # A readable idle connection is unusable: its peer has closed it, or sent data without a request.
                # Poll, because the event loop may not have noticed yet.
                return self._wire.ended or bool(self._wire.unread) or self._has_arrived()
            case "server_addr":
                return self._wire.transport.get_extra_info("peername")
            case "client_addr":
                return self._wire.transport.get_extra_info("sockname")
            case _:
                return self._wire.transport.get_extra_info(info)

    def _has_arrived(self) -> bool:
        poll = select.poll()
        poll.register(self._wire.transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    async def _flush(self) -> None:
        if not self._unsent:
            return
        data, self._unsent = self._unsent, b""
        wire = self._wire
        if wire.ended or wire.transport.is_closing():
            raise httpcore2.WriteError("the peer has closed the connection")
        with _raising(httpcore2.WriteTimeout, httpcore2.WriteError):
            wire.transport.write(data)
            if not wire.has_room:
                async with asyncio.timeout(self._timeout):
                    await wire.room()


def on_asyncio(
    transport: httpx2.AsyncHTTPTransport, backend: AsyncioBackend | None = None
) -> httpx2.AsyncHTTPTransport:
    """``transport`` with these connections, set on its pool because httpx has no parameter for it."""
    transport._pool._network_backend = backend or AsyncioBackend()  # noqa: SLF001
    return transport


@contextmanager
def _raising(timeout_type: type[Exception], error_type: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timeout_type(str(error)) from error
    except OSError as error:
        raise error_type(str(error)) from error
