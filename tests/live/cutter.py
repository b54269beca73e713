"""A wire to an engine that breaks when a test wants it to: an engine that dies, as far as a gateway can see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_STREAM = b"text/event-stream"


@dataclass(slots=True)
class Fuse:
    """Shared by several wires. The next stream breaks after ``events`` events, with the wire that it is on, and no other."""

    events: int | None = None

    def burns(self, seen: int) -> bool:
        if self.events is None or seen < self.events:
            return False
        self.events = None
        return True


@dataclass(slots=True, eq=False)
class Cutter:
    """A TCP proxy in front of ``target``. ``gone``: it takes no connections any more."""

    target: str
    fuse: Fuse
    url: str = ""
    gone: bool = False
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.gone:
            writer.close()
            return
        address = urlsplit(self.target)
        beyond, to_target = await asyncio.open_connection(address.hostname, address.port)
        self._writers |= {writer, to_target}
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, to_target), self._pass(beyond, writer, back=True))
        for each in (writer, to_target):
            each.close()
            self._writers.discard(each)

    def cut(self) -> None:
        self.gone = True
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, back: bool = False
    ) -> None:
        seen, is_stream = 0, False
        while data := await source.read(65536):
            if back and data.startswith(b"HTTP/1.1 "):
                seen, is_stream = 0, _STREAM in data
            seen += data.count(b"data: ") if is_stream else 0
            if is_stream and self.fuse.burns(seen):
                self.cut()
                return
            sink.write(data)
            await sink.drain()
        sink.close()


@asynccontextmanager
async def wires(target: str, *, count: int) -> AsyncIterator[tuple[Fuse, list[Cutter]]]:
    fuse = Fuse()
    cutters = [Cutter(target, fuse) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for cutter in cutters:
            server = await asyncio.start_server(cutter.connect, "127.0.0.1", 0)
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            cutter.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield fuse, cutters
        for cutter in cutters:
            cutter.cut()
