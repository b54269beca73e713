"""An exchange with the engine that outlives its client.

A request that is dropped while the engine loads KV can kill the engine, and what was computed has to be
recorded whoever still listens. So the exchange runs in a task of its own and hands bytes to the client
through a bounded pipe; a client that leaves only makes the bytes go nowhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cwm.domain.errors import CwmError, EngineConnectionError, InternalError

if TYPE_CHECKING:
    from cwm.ports.engine import Engine, ForwardedResponse
    from cwm.ports.turn_wire import TurnAnswer

_ROOM_BYTES: Final = 256 * 1024
_STALLED_SECONDS: Final = 300.0


class Pipe:
    """Bytes on their way to one client: at most ``room`` and one piece more are held.

    A client that takes nothing for ``stalled_seconds`` counts as gone.
    """

    def __init__(self, room: int = _ROOM_BYTES, stalled_seconds: float = _STALLED_SECONDS) -> None:
        self._room = room
        self._stalled_seconds = stalled_seconds
        self._held: deque[bytes] = deque()
        self._size = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._closed = False
        self.abandoned = False

    async def put(self, data: bytes) -> None:
        """Return when there is room again, or nobody to take it."""
        if self.abandoned:
            return
        self._held.append(data)
        self._size += len(data)
        self._filled.set()
        if self._size >= self._room:
            await self._wait_for_room()

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._filled.set()

    def abandon(self) -> None:
        """Nobody takes any more."""
        self.abandoned = True
        self._held.clear()
        self._size = 0
        self._drained.set()
        self._filled.set()

    async def take(self) -> AsyncIterator[bytes]:
        """Everything that is there, in one piece, each time there is something."""
        while not self.abandoned:
            if self._held:
                data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
                self._held.clear()
                self._size = 0
                self._drained.set()
                yield data
            elif self._closed:
                return
            else:
                self._filled.clear()
                await self._filled.wait()

    async def _wait_for_room(self) -> None:
        self._drained.clear()
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await self._drained.wait()
        except TimeoutError:
            self.abandon()


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    streamed: bool


@dataclass(frozen=True, slots=True)
class Outgoing:
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


class Exchange:
    """One request to the engine and its answer.

    ``reader`` is asked for when the head is there. ``settle`` is awaited once, when all of the answer
    that will come has come and before the client can know it, with what was read; its error is the
    client's.
    """

    def __init__(
        self,
        engine: Engine,
        outgoing: Outgoing,
        reader: Callable[[Head], TurnAnswer],
        settle: Callable[[Head, TurnAnswer], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._outgoing = outgoing
        self._reader = reader
        self._settle = settle
        self._settled = False
        self._complete = False
        self._ready = asyncio.Event()
        self._head: Head | None = None
        self._answer: TurnAnswer | None = None
        self._error: CwmError | None = None
        self._pipe = Pipe()

    async def head(self) -> Head:
        """Status and headers; raises the coded error of an engine that did not answer."""
        await self._ready.wait()
        if self._head is None:
            raise self._error or InternalError("The engine's answer has no head.")
        return self._head

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes for the client; raises where the answer broke off or could not be recorded."""
        async for data in self._pipe.take():
            yield data
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """The client is gone: the exchange goes on for as long as it has to."""
        self._pipe.abandon()

    async def run(self) -> None:
        """Drive the exchange to its end; also raises what the client is told. Cancelling keeps what was read."""
        try:
            await self._converse()
        except CwmError as error:
            self._error = error
            await self._settle_late()
            raise
        except asyncio.CancelledError:
            self._error = EngineConnectionError("The gateway is stopping; send the request again.")
            await self._settle_late()
            raise
        finally:
            if self._error is None and not self._complete:
                self._error = InternalError("The exchange with the engine failed.")
            self._ready.set()
            self._pipe.close()

    async def _converse(self) -> None:
        out = self._outgoing
        async with self._engine.forward(out.method, out.path, out.body, out.headers) as upstream:
            self._head = Head(upstream.status, upstream.headers, _is_stream(upstream))
            answer = self._answer = self._reader(self._head)
            self._ready.set()
            async for chunk in upstream.chunks():
                await self._pass_on(answer.feed(chunk))
                if self._pipe.abandoned and answer.begun:
                    break
            rest = answer.finish()
        await self._settle_once()
        await self._pass_on(rest)
        self._complete = True

    async def _pass_on(self, data: bytes) -> None:
        if self._answer is not None and self._answer.ended:
            await self._settle_once()
        if data:
            await self._pipe.put(data)

    async def _settle_once(self) -> None:
        if self._head is not None and self._answer is not None and not self._settled:
            self._settled = True
            await self._settle(self._head, self._answer)

    async def _settle_late(self) -> None:
        """What cannot be recorded now goes with the error that is already being told."""
        try:
            await self._settle_once()
        except CwmError:
            self._settled = True


def _is_stream(upstream: ForwardedResponse) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in upstream.headers
    )
