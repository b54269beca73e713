"""Notifications to handshake-era clients over stdio, where the connection is the agent session.

A client of 2026-07-28 uses ``subscriptions/listen``, as over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.subscriptions import ServerEvent

from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity
from cwm.transport.http.request_keys import AGENT_SESSION
from cwm.transport.mcp.listening.notifications import notification_of
from cwm.transport.mcp.listening.streams import EventStreams
from cwm.transport.mcp.requests.agent import Context, connection_of


@dataclass(frozen=True, slots=True)
class ConnectionSessions:
    """Middleware of the low-level server that sends changes to each stdio connection after its ``initialize``."""

    streams: EventStreams
    identity: Identity
    end_session: Callable[[Principal, str], Awaitable[None]]

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method == "initialize" and ctx.request is None:
            await self._begin(connection_of(ctx))
        return result

    async def _begin(self, connection: Connection) -> None:
        try:
            principal = await self.identity.authenticate({})
            session_id = await self.streams.sessions.begin(principal)
        except CwmError:
            # Each request will fail with the same error; nothing is sent before the first one.
            return
        connection.state[AGENT_SESSION] = session_id
        sender = asyncio.create_task(self._send_events(connection, session_id, principal))

        async def end() -> None:
            sender.cancel()
            with suppress(asyncio.CancelledError):
                await sender
            with suppress(CwmError):
                await self.end_session(principal, session_id)

        connection.exit_stack.push_async_callback(end)

    async def _send_events(self, connection: Connection, session_id: str, principal: Principal) -> None:
        async def write(event: ServerEvent | None) -> None:
            if event is not None:
                notification = notification_of(event)
                await connection.outbound.notify(notification["method"], notification.get("params"))

        await connection.initialized.wait()
        with suppress(CwmError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with self.streams.open(session_id, principal) as stream:
                await self.streams.send_events(stream, write)
