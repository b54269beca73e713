"""``GET /mcp``: the event streams on which handshake-era clients receive notifications.

A session may have several streams, on any replicas. Each notification goes out on one of them: the newest stream
makes itself the session's sender in the shared store, and when it closes another takes over. A notification sent while
no stream is open is lost, as after any disconnection: a client reads the current state when it reconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import structlog
from mcp.shared.subscriptions import ServerEvent
from starlette.types import Receive, Send

from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.ports.changes import Changes
from cwm.ports.resource_interest import ResourceInterest
from cwm.services.access.standing import Credential, Standing
from cwm.services.agents.agents import Agents
from cwm.transport.mcp.listening.notifications import Subscribed, event_of, frame, subscribed_to

KEEPALIVE_SECONDS: Final = 15.0
_MAX_PENDING: Final = 1000
_SENDER: Final = "voice"
_COMMENT: Final = b": \r\n\r\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Write = Callable[[ServerEvent | None], Awaitable[None]]
"""Sends an event to the client; for None, a keepalive."""

Admit = Callable[[Principal], AbstractAsyncContextManager[None]]
"""A context manager around an open stream; raises a coded error if there are too many streams."""

_log = structlog.get_logger("cwm.mcp")


@dataclass(eq=False, slots=True)
class Stream:
    """One open stream. ``version`` counts the changes of its session's state; ``seen_version`` is the last one read.

    ``is_sender`` says whether it is the session's sender. ``keepalive_at`` is the time of the next keepalive, by the
    event loop's clock. ``registration`` is the task that registers the session's subscriptions upstream,
    ``registered_uris`` the URIs it has registered.
    """

    session_id: str
    principal: Principal
    id: str = field(default_factory=lambda: uuid4().hex)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    version: int = 1
    seen_version: int = 0
    is_sender: bool = False
    keepalive_at: float = 0.0
    subscribed: Subscribed = field(default_factory=Subscribed)
    registered_uris: frozenset[str] = frozenset()
    registration: asyncio.Task[None] | None = None
    pending: dict[ServerEvent, None] = field(default_factory=dict)

    @property
    def stale(self) -> bool:
        """True until it has read its session's newest state: until then it keeps every event, unable to select."""
        return self.seen_version != self.version

    def receive(self, change: Change) -> None:
        """Queue the change's event for the client; an event that is already pending is queued once."""
        if change.kind is ChangeKind.ENDED:
            self.end()
        elif change.kind is ChangeKind.STATE:
            self.version += 1
            self.news.set()
        elif (event := event_of(change)) is not None and (self.stale or self._sends(change)):
            self.pending[event] = None
            if len(self.pending) > _MAX_PENDING:
                self.end()
            self.news.set()

    def take(self) -> list[ServerEvent]:
        """Remove all pending events; returns those to send, if this stream is the sender."""
        events, self.pending = self.pending, {}
        if not self.is_sender:
            return []
        return list(dict.fromkeys(each for event in events for each in self.subscribed.events(event)))

    def end(self) -> None:
        self.ended = True
        self.news.set()

    def _sends(self, change: Change) -> bool:
        if change.kind is not ChangeKind.RESOURCE or change.uri is None:
            return self.is_sender
        return self.is_sender and bool(self.subscribed.matching(change.uri))


class EventStreams:
    """The streams that are open on this replica."""

    def __init__(
        self,
        agents: Agents,
        changes: Changes,
        interest: ResourceInterest,
        standing: Standing,
        admit: Admit = lambda _: nullcontext(),
    ) -> None:
        self.sessions = agents.store
        self._standing = standing
        self._admit = admit
        self._agents = agents
        self._changes = changes
        self._interest = interest
        self._keepalive_seconds = KEEPALIVE_SECONDS
        self._open: dict[str, set[Stream]] = {}
        self._closed = False
        self._unsubscribe = changes.subscribe(self._on_change)

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    async def serve(
        self,
        session_id: str,
        principal: Principal,
        credential: Credential | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a ``GET``: send events until the session or the credential ends, the client disconnects or the gateway stops. CWM-7002."""

        async def write(event: ServerEvent | None) -> None:
            body = _COMMENT if event is None else frame(event)
            await send({"type": "http.response.body", "body": body, "more_body": True})

        async with self._admit(principal), self.open(session_id, principal) as stream:
            disconnect = asyncio.create_task(_disconnected(receive))
            disconnect.add_done_callback(lambda _: stream.end())
            try:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await write(None)
                with self._standing.holds(credential, stream.end):
                    await self.send_events(stream, write)
                await send({"type": "http.response.body", "body": b""})
            finally:
                disconnect.cancel()

    @asynccontextmanager
    async def open(self, session_id: str, principal: Principal) -> AsyncIterator[Stream]:
        """Open a stream that receives changes and becomes the session's sender. StorageReadError, StorageWriteError."""
        stream = Stream(session_id, principal, ended=self._closed)
        self._open.setdefault(session_id, set()).add(stream)
        try:
            await self._become_sender(stream)
            yield stream
        finally:
            try:
                await self._resign(stream)
            finally:
                self._forget(stream)
            if stream.registration is not None:
                # Another stream of the session may rely on the subscriptions that this one has begun to register.
                await stream.registration

    async def send_events(self, stream: Stream, write: Write) -> None:
        """Write the stream's events to the client until the stream ends."""
        stream.keepalive_at = self._next_keepalive()
        while not stream.ended:
            await self._next(stream, write)

    def close(self) -> None:
        """End every stream, and each that opens from now on."""
        self._closed = True
        self._unsubscribe()
        for stream in self._all():
            stream.end()

    async def _next(self, stream: Stream, write: Write) -> None:
        """Wait for events or for the next keepalive, and send what there is."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(stream.keepalive_at):
                await stream.news.wait()
        # Only keepalives prolong the session: sending notifications does not count as session activity.
        if asyncio.get_running_loop().time() >= stream.keepalive_at:
            await self._prolong(stream)
            await write(None)
            stream.keepalive_at = self._next_keepalive()
        stream.news.clear()
        if stream.stale:
            await self._read_state(stream)
        if not stream.stale:
            for event in stream.take():
                await write(event)

    def _next_keepalive(self) -> float:
        return asyncio.get_running_loop().time() + self._keepalive_seconds

    async def _prolong(self, stream: Stream) -> None:
        """Mark the session as in use; end the stream if the session is gone, whose end this replica may have missed."""
        with suppress(CwmError):
            if await self._agents.listens(stream.principal, stream.session_id):
                stream.version += 1
            else:
                stream.end()

    async def _become_sender(self, stream: Stream) -> None:
        """Make this stream the session's sender, whichever was before."""
        state = await self.sessions.recall(stream.session_id)
        before = state.get(_SENDER)
        while True:
            holder = await self.sessions.remember(stream.session_id, _SENDER, stream.id, instead_of=before)
            if holder in {stream.id, None}:
                break
            before = holder
        await self._publish_state(stream)

    async def _read_state(self, stream: Stream) -> None:
        """Read the session's subscriptions and its sender. The stream stays stale if the store does not answer."""
        version = stream.version
        try:
            state = await self.sessions.recall(stream.session_id)
            sender_id = state.get(_SENDER) or await self.sessions.remember(
                stream.session_id, _SENDER, stream.id
            )
        except CwmError as away:
            _log.warning("stream_state_unknown", error=away.code)
            return
        stream.is_sender = sender_id == stream.id
        stream.subscribed = Subscribed(subscribed_to(state))
        stream.seen_version = version
        if stream.registration is None or stream.registration.done():
            # In a task of its own: an upstream may answer slowly, and the stream sends other events meanwhile.
            stream.registration = asyncio.create_task(self._register_interest(stream))

    async def _register_interest(self, stream: Stream) -> None:
        """Register the session's subscriptions upstream, as perhaps only another replica has done so."""
        while (now := stream.subscribed.uris) != (before := stream.registered_uris):
            stream.registered_uris = now
            additions = (self._update_interest(stream, self._interest.watch, uri) for uri in now - before)
            removals = (self._update_interest(stream, self._interest.unwatch, uri) for uri in before - now)
            await asyncio.gather(*additions, *removals)

    async def _update_interest(
        self, stream: Stream, update: Callable[[Principal, str | None, str], Awaitable[None]], uri: str
    ) -> None:
        try:
            await update(stream.principal, stream.session_id, uri)
        except CwmError as refused:
            _log.warning("interest_not_told", error=refused.code)
        except Exception:
            logging.getLogger(__name__).exception("registering the interest in a resource failed")

    async def _resign(self, stream: Stream) -> None:
        """Give up being the session's sender, if this stream still is, so that another stream takes over."""
        with suppress(CwmError):
            state = await self.sessions.recall(stream.session_id)
            if state.get(_SENDER) == stream.id:
                await self.sessions.forget(stream.session_id, _SENDER)
                await self._publish_state(stream)

    async def _publish_state(self, stream: Stream) -> None:
        await self._changes.publish(Change(ChangeKind.STATE, agent_session=stream.session_id))

    def _on_change(self, change: Change) -> None:
        session_id = change.agent_session
        for stream in self._all() if session_id is None else self._open.get(session_id, ()):
            if change.concerns(stream.principal.tenant, stream.session_id, stream.session_id):
                stream.receive(change)

    def _all(self) -> list[Stream]:
        return [stream for streams in self._open.values() for stream in streams]

    def _forget(self, stream: Stream) -> None:
        streams = self._open[stream.session_id]
        streams.discard(stream)
        if not streams:
            del self._open[stream.session_id]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
