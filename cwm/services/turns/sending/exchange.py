"""An exchange with the engine that may outlive its client.

Aborting a request while the engine loads KV can kill an engine without CWM's connector, and the tokens have to be recorded
even if the client has disconnected. So the exchange runs in a task of its own and passes bytes to the client through
a bounded pipe. When the client disconnects, the remaining bytes are dropped, and the request ends as early as it may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

from cwm.background import cancel_and_wait
from cwm.domain.errors import CwmError, EngineConnectionError, EngineResponseError, InternalError
from cwm.ports.engine import Engine, ForwardedResponse, SessionName
from cwm.ports.turn_wire import PromptUsage, Resume, TurnAnswer
from cwm.threads import aside

_ROOM_BYTES: Final = 256 * 1024
_STALLED_SECONDS: Final = 300.0
_ABORT_AGAIN_SECONDS: Final = 1.0
_FAILURE: Final = 500


def _never(_: TurnAnswer) -> None:
    """Of an answer that nobody goes on with."""


class Pipe:
    """A buffer between the engine and one client. It holds at most ``room`` bytes and one more piece.

    A client that reads nothing for ``stalled_seconds`` counts as disconnected.
    """

    def __init__(self, room: int = _ROOM_BYTES, stalled_seconds: float = _STALLED_SECONDS) -> None:
        self._room = room
        self._stalled_seconds = stalled_seconds
        self._buffer: deque[bytes] = deque()
        self._size = 0
        self._has_data = asyncio.Event()
        self._has_room = asyncio.Event()
        self._closed = False
        self.abandoned = False

    async def put(self, data: bytes) -> None:
        """Add ``data``; returns when there is room again, or at once if the client has disconnected."""
        if self.abandoned:
            return
        self._buffer.append(data)
        self._size += len(data)
        self._has_data.set()
        if self._size >= self._room:
            await self._wait_for_room()

    def close(self) -> None:
        """Mark the end of the answer."""
        self._closed = True
        self._has_data.set()

    def abandon(self) -> None:
        """The client has disconnected: drop the buffered bytes and all later ones."""
        self.abandoned = True
        self._buffer.clear()
        self._size = 0
        self._has_room.set()
        self._has_data.set()

    async def take(self) -> AsyncIterator[bytes]:
        """Yield the buffered bytes as one piece, each time there are some."""
        while not self.abandoned:
            if self._buffer:
                data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
                self._buffer.clear()
                self._size = 0
                self._has_room.set()
                yield data
            elif self._closed:
                return
            else:
                self._has_data.clear()
                await self._has_data.wait()

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await self._has_room.wait()
        except TimeoutError:
            self.abandon()


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    streamed: bool
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    session: SessionName | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """How a request may end once its client has left.

    A stream ends after its first event. ``generation_ids`` are to be aborted in the engine, which then answers at once with
    what it has. Where that is impossible, and for a stream, ``cut`` allows to drop the connection at any moment.
    """

    left: asyncio.Event = field(default_factory=asyncio.Event)
    generation_ids: Sequence[str] = ()
    cut: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """One request to the engine and its answer.

    ``reader`` is called with the head and gives the parser of the answer. ``settle`` is awaited once, with the
    exchange and the parsed answer: after the engine's last byte and before the client gets the end. Its error is raised to the
    client. ``successor`` names an engine in place of the one that is gone, each time another one; ``resume`` gives the rest of an
    answer of which the client has a part. ``first_token_ms``: how long the engine took until the first token arrived, once it has.
    """

    engine: Engine
    outgoing: Outgoing
    reader: Callable[[Head], TurnAnswer]
    settle: Callable[[Exchange, Head, TurnAnswer], Awaitable[None]]
    departure: Departure = field(default_factory=Departure)
    successor: Callable[[], Awaitable[Engine | None]] | None = None
    resume: Callable[[TurnAnswer], Resume | None] = _never
    first_token_ms: int | None = field(default=None, init=False)
    _passed: bool = False
    """Whether the client has got a part of the answer."""
    _settled: bool = False
    _complete: bool = False
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _head: Head | None = None
    _answer: TurnAnswer | None = None
    _error: CwmError | None = None
    _pipe: Pipe = field(default_factory=Pipe)

    async def head(self) -> Head:
        """Status and headers. Raises the coded error if the engine did not answer."""
        await self._ready.wait()
        if self._head is None:
            raise self._error or InternalError("The engine's answer has no head.")
        return self._head

    def usage(self) -> PromptUsage | None:
        """The prompt's usage, once the engine has told it."""
        return None if self._answer is None else self._answer.usage()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes for the client. Raises if the answer broke off or could not be recorded."""
        async for data in self._pipe.take():
            yield data
        if self._error is not None:
            raise self._error

    async def run(self) -> None:
        """Run the exchange to its end. Raises the same error as the client gets. When cancelled it records what was read."""
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
        try:
            async with asyncio.timeout(None) as patience:
                watcher = asyncio.create_task(self._mind_client(patience))
                try:
                    await self._talk()
                finally:
                    await cancel_and_wait(watcher)
        except TimeoutError:
            self._error = EngineConnectionError("The client has disconnected, and the request was given up.")
            await self._settle_once()

    async def _mind_client(self, patience: asyncio.Timeout) -> None:
        """Once the client has left, end the request. An engine that has not begun with it yet aborts nothing, so ask again."""
        departure = self.departure
        await departure.left.wait()
        self._pipe.abandon()
        while departure.generation_ids and await self._aborts(departure.generation_ids):  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(_ABORT_AGAIN_SECONDS)
        if departure.cut:
            patience.reschedule(asyncio.get_running_loop().time())

    async def _aborts(self, generation_ids: Sequence[str]) -> bool:
        try:
            return await self.engine.abort(generation_ids)
        except CwmError:
            return False

    async def _talk(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            tail = await self._ask(began)
        except EngineConnectionError as lost:
            tail = await self._go_on(lost, began)
        self._note_first_token(began)
        await self._settle_once()
        await self._pass_on(tail)
        self._complete = True

    async def _ask(self, began: float) -> bytes:
        outgoing = self.outgoing
        async with self.engine.forward(
            outgoing.method, outgoing.path, outgoing.body, outgoing.headers, outgoing.session
        ) as upstream:
            head = Head(upstream.status, upstream.headers, _is_stream(upstream), upstream.decision)
            if self._head is not None and (head.status, head.streamed) != (
                self._head.status,
                self._head.streamed,
            ):
                raise EngineResponseError("Another engine answers in another way.", status=head.status)
            if head.status >= _FAILURE and self._answer is None and await self._next(died=True):
                return await self._ask(began)
            self._head = self._head or head
            self._answer = self.reader(self._head)
            self._ready.set()
            tail = await self._hear(self._answer, upstream.chunks(), began)
        self._require_whole(self._answer)
        if self._answer.failed:
            return await self._go_on(None, began)
        return tail

    def _require_whole(self, answer: TurnAnswer) -> None:
        """CWM-5001 for an answer that the engine broke off because it ends. One whose client has left was to be broken off."""
        if answer.aborted and not self._pipe.abandoned:
            raise EngineConnectionError("The engine ended in the middle of the answer.")

    async def _go_on(self, lost: EngineConnectionError | None, began: float) -> bytes:
        """Have other engines do what the one that is gone has not done.

        Where that cannot be, raises ``lost``, or gives what the engine itself says of its failure if it goes on.
        """
        answer, died = self._answer, lost is None
        failure = b"" if answer is None else answer.failed
        again = answer is None or (self._head is not None and self._head.streamed and not self._passed)
        while answer is None or not answer.ended:
            resume = None if again or answer is None else self.resume(answer)
            if (not again and resume is None) or not await self._next(died=died):
                break
            died = False
            try:
                if resume is None or answer is None:
                    return await self._ask(began)
                async with aclosing(resume(self.engine)) as rest:
                    tail = await self._hear(answer, rest, began)
                self._require_whole(answer)
                return tail
            except EngineConnectionError:
                continue
            except CwmError as error:
                if lost is not None:
                    raise lost from error
                break
        if (answer is not None and answer.ended) or (failure and await self._is_well()):
            return failure
        raise lost or EngineConnectionError("The engine ended in the middle of the answer.")

    async def _next(self, *, died: bool) -> bool:
        """Put the next engine in place of this one. If this one only said so that it ``died``, it must not be well."""
        if self.successor is None or self._pipe.abandoned or (died and await self._is_well()):
            return False
        with suppress(CwmError):
            if (engine := await self.successor()) is not None:
                self.engine = engine
                return True
        return False

    async def _is_well(self) -> bool:
        with suppress(CwmError):
            await self.engine.health()
            return True
        return False

    async def _hear(self, answer: TurnAnswer, chunks: AsyncIterator[bytes], began: float) -> bytes:
        """Pass on what arrives. Returns what is left at the end."""
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            data = answer.feed(chunk)
            if answer.begun:
                self._note_first_token(began)
            await self._pass_on(data)
            if self._pipe.abandoned and answer.begun:
                break
        return await aside(size, answer.finish)

    def _note_first_token(self, began: float) -> None:
        if self.first_token_ms is None:
            self.first_token_ms = round((asyncio.get_running_loop().time() - began) * 1000)

    async def _pass_on(self, data: bytes) -> None:
        if self._answer is not None and self._answer.ended:
            await self._settle_once()
        if data:
            self._passed = True
            await self._pipe.put(data)

    async def _settle_once(self) -> None:
        if self._head is not None and self._answer is not None and not self._settled:
            self._settled = True
            await self.settle(self, self._head, self._answer)

    async def _settle_late(self) -> None:
        """Record what was read. If that fails too, the earlier error is the one to report."""
        try:
            await self._settle_once()
        except CwmError:
            self._settled = True


def _is_stream(upstream: ForwardedResponse) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in upstream.headers
    )
