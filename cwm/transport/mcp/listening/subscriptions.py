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
from mcp.server.context import ServerRequestContext
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
from cwm.domain.errors import CwmError, ErrorKind, InsufficientScopeError, InvalidParameterError
from cwm.domain.principal import Principal
from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.ports.resource_interest import ResourceInterest
from cwm.services.upstreams.upstreams import CallerOf
from cwm.transport.mcp.listening.connection import ConnectionSessions
from cwm.transport.mcp.listening.notifications import (
    SUBSCRIBED,
    Subscribed,
    change_of,
    event_of,
    subscribed,
    subscribed_to,
)
from cwm.transport.mcp.listening.streams import KEEPALIVE_SECONDS, EventStreams
from cwm.transport.mcp.requests.agent import Agency
from cwm.transport.mcp.requests.permissions import of_resource, protocol_error

_MAX_URI_CHARACTERS: Final = 2048
_MAX_SUBSCRIPTIONS: Final = 1000
_MAX_LISTENERS: Final = 10_000
_UNWATCH_SECONDS: Final = 5.0

Context = ServerRequestContext[Any, Any]
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
        def hear(change: Change) -> None:
            if not change.concerns(self.tenant, self.agent_session, self.key):
                return
            if (event := event_of(change)) is not None:
                for told in self.subscribed.events(event):
                    listener(told)
            elif (
                change.kind is ChangeKind.ENDED
                and change.agent_session == self.agent_session
                and self.handler
            ):
                self.handler.close()

        return self.changes.subscribe(hear)


@dataclass(eq=False, slots=True)
class _Watching:
    """The ``listeners`` with the same interest. One of them registers it; the others wait until it has."""

    listeners: int = 0
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)
    told: bool = False


@dataclass(eq=False, slots=True)
class Subscriptions:
    """Handlers of the requests by which clients subscribe to notifications."""

    sessions: AgentSessions
    changes: Changes
    interest: ResourceInterest
    agency: Agency
    keepalive_seconds: float = KEEPALIVE_SECONDS
    _watching: defaultdict[_Interest, _Watching] = field(default_factory=lambda: defaultdict(_Watching))
    _listening: set[ListenHandler] = field(default_factory=set)
    _closed: bool = False

    def __len__(self) -> int:
        """The number of open listen streams."""
        return len(self._listening)

    def serve_on(self, face: FastMCP[Any], streams: EventStreams) -> None:
        """Install the handlers. The SDK derives both eras' capabilities from them: ``subscribe`` and three ``listChanged``."""
        server = face._mcp_server  # noqa: SLF001
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.middleware.append(ConnectionSessions(streams, self.agency.identity, self.end))

    async def subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        caller, session_id = await self._session(context)
        uri = _checked([params.uri])[0]
        await self._require(context, [uri])
        async with _coded():
            before = subscribed_to(await self.sessions.recall(session_id))
            if uri not in before and len(before) >= _MAX_SUBSCRIPTIONS:
                raise InvalidParameterError(
                    f"A session can subscribe to at most {_MAX_SUBSCRIPTIONS} resources.", field="uri"
                )
            await self.interest.watch(caller.agent.principal, session_id, uri, caller.authorization or "")
            await self.sessions.remember(session_id, SUBSCRIBED + uri, "")
        await self._tell_state(session_id)
        return EmptyResult()

    async def unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        caller, session_id = await self._session(context)
        uri = params.uri
        async with _coded():
            before = subscribed_to(await self.sessions.recall(session_id))
            await self.sessions.forget(session_id, SUBSCRIBED + uri)
            if uri in before:
                await self.interest.unwatch(caller.agent.principal, session_id, uri)
        await self._tell_state(session_id)
        return EmptyResult()

    async def listen(
        self, context: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve one stream until the client disconnects, the agent session ends or the gateway stops."""
        if self._closed or len(self._listening) >= _MAX_LISTENERS:
            raise MCPError(
                INTERNAL_ERROR, "Too many streams are open here, or the gateway is stopping; try again."
            )
        uris = _checked(params.notifications.resource_subscriptions or [])
        await self._require(context, uris)
        caller = await self._caller(context)
        principal, agent_session = caller.agent.principal, caller.agent.agent_session
        key = caller.agent.key
        bus = _Bus(self.changes, principal.tenant, agent_session, key, subscribed(uris))
        handler = bus.handler = ListenHandler(bus, max_subscriptions=1)
        async with (
            self._watched(caller, uris),
            self._kept(principal, agent_session, handler),
        ):
            self._listening.add(handler)
            try:
                return await handler(context, params)
            finally:
                self._listening.discard(handler)

    async def end(self, principal: Principal, session_id: str) -> None:
        """End a handshake-era session and all its subscriptions. StorageReadError, StorageWriteError."""
        kept = await self.agency.agents.finish(principal, session_id)
        for uri in subscribed_to(kept):
            with suppress(CwmError):
                await self.interest.unwatch(principal, session_id, uri)

    def close(self) -> None:
        """End every listen stream with its result, so that clients know that it did not break off."""
        self._closed = True
        for handler in list(self._listening):
            handler.close()

    @asynccontextmanager
    async def _kept(
        self, principal: Principal, agent_session: str | None, handler: ListenHandler
    ) -> AsyncIterator[None]:
        """Keep the stream's agent session alive while the stream is open; end the stream if the session is gone."""

        async def keep() -> None:
            while True:
                await asyncio.sleep(self.keepalive_seconds)
                with suppress(CwmError):
                    if not await self.agency.agents.listens(principal, agent_session):
                        handler.close()

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()

    @asynccontextmanager
    async def _watched(self, caller: CallerOf, uris: list[str]) -> AsyncIterator[None]:
        """Register interest in ``uris`` that the agent session does not watch yet; the last listener to leave ends it."""
        counted = [(caller.agent.principal, caller.agent.agent_session, uri) for uri in uris]
        for interest in counted:
            self._watching[interest].listeners += 1
        try:
            async with _coded():
                for interest in counted:
                    await self._watch(interest, caller.authorization or "")
            yield
        finally:
            # Shielded: a client that disconnects cancels whatever waits here.
            with anyio.move_on_after(_UNWATCH_SECONDS, shield=True):
                await self._unwatch(counted)

    async def _watch(self, interest: _Interest, authorization: str) -> None:
        watching = self._watching[interest]
        async with watching.telling:
            if not watching.told:
                await self.interest.watch(*interest, authorization)
                watching.told = True

    async def _unwatch(self, counted: list[_Interest]) -> None:
        for interest in counted:
            self._watching[interest].listeners -= 1
            if not self._watching[interest].listeners:
                del self._watching[interest]
                with suppress(CwmError):
                    await self.interest.unwatch(*interest)

    async def _tell_state(self, session_id: str) -> None:
        await self.changes.publish(Change(ChangeKind.STATE, agent_session=session_id))

    async def _caller(self, context: Context) -> CallerOf:
        async with _coded():
            return await self.agency.caller(context)

    async def _require(self, context: Context, uris: list[str]) -> None:
        """Require the scopes for reading each of ``uris``: subscribing takes the same."""
        needed = frozenset[AccessScope]().union(*map(of_resource, uris))
        try:
            await self.agency.require(context, needed, "resources/subscribe")
        except InsufficientScopeError as refused:
            raise protocol_error(refused) from refused

    async def _session(self, context: Context) -> tuple[CallerOf, str]:
        caller = await self._caller(context)
        if (session_id := caller.agent.agent_session) is None:
            raise MCPError(INVALID_REQUEST, "There is no session to subscribe in: initialize first.")
        return caller, session_id


def _checked(uris: list[str]) -> list[str]:
    """``uris`` without duplicates; refuses too many, or one too long to store."""
    if len(uris) > _MAX_SUBSCRIPTIONS or any(len(uri) > _MAX_URI_CHARACTERS for uri in uris):
        refused = InvalidParameterError(
            f"At most {_MAX_SUBSCRIPTIONS} URIs of at most {_MAX_URI_CHARACTERS} characters each.",
            field="uri",
        )
        raise MCPError(INVALID_PARAMS, refused.message, refused.as_dict())
    return list(dict.fromkeys(uris))


@asynccontextmanager
async def _coded() -> AsyncIterator[None]:
    """Convert a coded error to the JSON-RPC error that carries it."""
    try:
        yield
    except CwmError as refused:
        code = INVALID_PARAMS if refused.kind is ErrorKind.INVALID else INTERNAL_ERROR
        raise MCPError(code, refused.message, refused.as_dict()) from refused
