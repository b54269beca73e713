"""Subscriptions to resources and lists: ``resources/subscribe`` in the handshake era, later ``subscriptions/listen``.

Its handlers are installed on FastMCP's low-level server.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from fastmcp import FastMCP
from mcp import MCPError
from mcp.server.subscriptions import ListenHandler
from mcp.shared.subscriptions import ServerEvent
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from cwm.domain.access import AccessScope
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.ports.resource_interest import ResourceInterest
from cwm.services.access.standing import Standing
from cwm.services.upstreams.upstreams import CallerOf
from cwm.transport.mcp.listening.connection import ConnectionSessions
from cwm.transport.mcp.listening.notifications import (
    SUBSCRIBED,
    Subscribed,
    change_of,
    event_of,
    subscribed_to,
)
from cwm.transport.mcp.listening.streams import KEEPALIVE_SECONDS, EventStreams
from cwm.transport.mcp.requests.agent import Agency, Context, credential_of
from cwm.transport.mcp.requests.errors import protocol_error, protocol_errors
from cwm.transport.mcp.requests.permissions import of_resource, require

_MAX_URI_CHARACTERS: Final = 2048
_MAX_SUBSCRIPTIONS: Final = 1000
_MAX_LISTENERS: Final = 10_000
_UNWATCH_SECONDS: Final = 5.0

_Interest = tuple[Principal, str | None, str]
"""The principal, its agent session, and the URI of the resource."""


@dataclass(eq=False, slots=True)
class _Bus:
    """Gives one listener's changes to the SDK's ``handler`` of its stream, as the bus that the SDK expects."""

    changes: Changes
    tenant: str
    agent_session: str | None
    key: str
    subscribed: Subscribed
    handler: ListenHandler | None = None

    async def publish(self, event: ServerEvent) -> None:
        await self.changes.publish(change_of(event, self.tenant, self.agent_session))

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        def forward(change: Change) -> None:
            if not change.concerns(self.tenant, self.agent_session, self.key):
                return
            if (event := event_of(change)) is not None:
                for each in self.subscribed.events(event):
                    listener(each)
            elif (
                change.kind is ChangeKind.ENDED
                and change.agent_session == self.agent_session
                and self.handler
            ):
                self.handler.close()

        return self.changes.subscribe(forward)


@dataclass(eq=False, slots=True)
class _Watch:
    """The ``listeners`` with the same interest. One of them registers it; the others wait until it has."""

    listeners: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    registered: bool = False


@dataclass(eq=False, slots=True)
class Subscriptions:
    """Handlers of the requests by which clients subscribe to notifications."""

    sessions: AgentSessions
    changes: Changes
    interest: ResourceInterest
    agency: Agency
    standing: Standing
    keepalive_seconds: float = KEEPALIVE_SECONDS
    _watches: defaultdict[_Interest, _Watch] = field(default_factory=lambda: defaultdict(_Watch))
    _handlers: set[ListenHandler] = field(default_factory=set)
    _closed: bool = False

    def __len__(self) -> int:
        """The number of open listen streams."""
        return len(self._handlers)

    def serve_on(self, face: FastMCP[Any], streams: EventStreams) -> None:
        """Install the handlers, from which the SDK derives ``subscribe`` and three ``listChanged`` for both eras."""
        server = face._mcp_server  # noqa: SLF001
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.middleware.append(ConnectionSessions(streams, self.agency.identity, self.end))

    async def subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        caller, session_id = await self._session(context)
        uri = _distinct([params.uri])[0]
        await self._require(context, [uri])
        with protocol_errors(INVALID_PARAMS):
            uris_before = subscribed_to(await self.sessions.recall(session_id))
            if uri not in uris_before and len(uris_before) >= _MAX_SUBSCRIPTIONS:
                raise InvalidParameterError(
                    f"A session can subscribe to at most {_MAX_SUBSCRIPTIONS} resources.", field="uri"
                )
            await self.interest.watch(caller.agent.principal, session_id, uri, caller.authorization or "")
            await self.sessions.remember(session_id, SUBSCRIBED + uri, "")
        await self._publish_state(session_id)
        return EmptyResult()

    async def unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        caller, session_id = await self._session(context)
        uri = params.uri
        with protocol_errors(INVALID_PARAMS):
            uris_before = subscribed_to(await self.sessions.recall(session_id))
            await self.sessions.forget(session_id, SUBSCRIBED + uri)
            if uri in uris_before:
                await self.interest.unwatch(caller.agent.principal, session_id, uri)
        await self._publish_state(session_id)
        return EmptyResult()

    async def listen(
        self, context: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve one stream until the client disconnects, the agent session or the credential ends, or the gateway stops."""
        if self._closed or len(self._handlers) >= _MAX_LISTENERS:
            raise MCPError(
                INTERNAL_ERROR, "Too many streams are open here, or the gateway is stopping; try again."
            )
        uris = _distinct(params.notifications.resource_subscriptions or [])
        await self._require(context, uris)
        caller = await self._caller(context)
        principal, agent_session = caller.agent.principal, caller.agent.agent_session
        key = caller.agent.key
        bus = _Bus(self.changes, principal.tenant, agent_session, key, Subscribed(frozenset(uris)))
        handler = bus.handler = ListenHandler(bus, max_subscriptions=1)
        async with (
            self._interest_in(caller, uris),
            self._kept_alive(principal, agent_session, handler),
        ):
            self._handlers.add(handler)
            try:
                with self.standing.holds(credential_of(context), handler.close):
                    return await handler(context, params)
            finally:
                self._handlers.discard(handler)

    async def end(self, principal: Principal, session_id: str) -> None:
        """End a handshake-era session and all its subscriptions. StorageReadError, StorageWriteError."""
        state = await self.agency.agents.finish(principal, session_id)
        for uri in subscribed_to(state):
            with suppress(CwmError):
                await self.interest.unwatch(principal, session_id, uri)

    def close(self) -> None:
        """End every listen stream with its result, so that clients know that it did not break off."""
        self._closed = True
        for handler in list(self._handlers):
            handler.close()

    @asynccontextmanager
    async def _kept_alive(
        self, principal: Principal, agent_session: str | None, handler: ListenHandler
    ) -> AsyncIterator[None]:
        """Keep the stream's agent session alive while the stream is open; end the stream if the session is gone."""

        async def prolong() -> None:
            while True:
                await asyncio.sleep(self.keepalive_seconds)
                with suppress(CwmError):
                    if not await self.agency.agents.listens(principal, agent_session):
                        handler.close()

        task = asyncio.create_task(prolong())
        try:
            yield
        finally:
            task.cancel()

    @asynccontextmanager
    async def _interest_in(self, caller: CallerOf, uris: list[str]) -> AsyncIterator[None]:
        """Register interest in ``uris`` that the agent session does not watch yet; the last listener to leave ends it."""
        interests = [(caller.agent.principal, caller.agent.agent_session, uri) for uri in uris]
        for interest in interests:
            self._watches[interest].listeners += 1
        try:
            with protocol_errors(INVALID_PARAMS):
                for interest in interests:
                    await self._watch(interest, caller.authorization or "")
            yield
        finally:
            # Shielded: a client that disconnects cancels whatever waits here.
            with anyio.move_on_after(_UNWATCH_SECONDS, shield=True):
                await self._unwatch(interests)

    async def _watch(self, interest: _Interest, authorization: str) -> None:
        watch = self._watches[interest]
        async with watch.lock:
            if not watch.registered:
                await self.interest.watch(*interest, authorization)
                watch.registered = True

    async def _unwatch(self, interests: list[_Interest]) -> None:
        for interest in interests:
            self._watches[interest].listeners -= 1
            if not self._watches[interest].listeners:
                del self._watches[interest]
                with suppress(CwmError):
                    await self.interest.unwatch(*interest)

    async def _publish_state(self, session_id: str) -> None:
        await self.changes.publish(Change(ChangeKind.STATE, agent_session=session_id))

    async def _caller(self, context: Context) -> CallerOf:
        with protocol_errors(INVALID_PARAMS):
            return await self.agency.caller(context)

    async def _require(self, context: Context, uris: list[str]) -> None:
        """Require the scopes for reading each of ``uris``: subscribing takes the same."""
        scopes = frozenset[AccessScope]().union(*map(of_resource, uris))
        await require(self.agency, context, scopes, "resources/subscribe")

    async def _session(self, context: Context) -> tuple[CallerOf, str]:
        caller = await self._caller(context)
        if (session_id := caller.agent.agent_session) is None:
            raise MCPError(INVALID_REQUEST, "There is no session to subscribe in: initialize first.")
        return caller, session_id


def _distinct(uris: list[str]) -> list[str]:
    """``uris`` without duplicates; refuses too many, or one too long to store."""
    if len(uris) > _MAX_SUBSCRIPTIONS or any(len(uri) > _MAX_URI_CHARACTERS for uri in uris):
        error = InvalidParameterError(
            f"At most {_MAX_SUBSCRIPTIONS} URIs of at most {_MAX_URI_CHARACTERS} characters each.",
            field="uri",
        )
        raise protocol_error(error, INVALID_PARAMS)
    return list(dict.fromkeys(uris))
