"""Cancels requests of handshake-era clients, whose ``notifications/cancelled`` may reach any replica.

The SDK looks for the request on the connection that the notification came by, but over HTTP every message has a
connection of its own. A client of 2026-07-28 closes the request's stream instead; stdio has a single connection.
"""

from __future__ import annotations

import json

import anyio
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp_types import RequestId

from cwm.background import BackgroundTasks
from cwm.domain.changes import Change, ChangeKind
from cwm.ports.changes import Changes
from cwm.transport.http.request_keys import AGENT_SESSION
from cwm.transport.mcp.requests.agent import Context


class Cancellations:
    """Middleware of the low-level server that tracks the requests of MCP sessions running on this replica."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._running_requests: dict[tuple[str, str], anyio.CancelScope] = {}
        self._publications = BackgroundTasks()
        changes.subscribe(self._on_change)

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        session_id = None if ctx.request is None else ctx.request.scope.get(AGENT_SESSION)
        if session_id is None:
            return await call_next(ctx)
        if ctx.method == "notifications/cancelled":
            self._publish(session_id, cancelled_request_id_from_params(ctx.params))
        if ctx.request_id is None:
            return await call_next(ctx)
        key = (session_id, _normalized(ctx.request_id))
        with anyio.CancelScope() as scope:
            self._running_requests[key] = scope
            try:
                return await call_next(ctx)
            finally:
                # A client that reuses an id replaces its own earlier request.
                if self._running_requests.get(key) is scope:
                    del self._running_requests[key]
        raise MCPError(REQUEST_CANCELLED, "Request cancelled")

    def _publish(self, session_id: str, request_id: RequestId | None) -> None:
        if request_id is None:
            return
        cancellation = Change(ChangeKind.GIVEN_UP, _normalized(request_id), session_id)
        # In a task of its own: the SDK ends the notification's handling before the change is published.
        self._publications.start(self._changes.publish(cancellation))

    def _on_change(self, change: Change) -> None:
        if change.kind is ChangeKind.GIVEN_UP and change.agent_session and change.uri:
            scope = self._running_requests.get((change.agent_session, change.uri))
            if scope is not None:
                scope.cancel()


def _normalized(request_id: RequestId) -> str:
    """The same key for 1 and "1": some clients send one and cancel the other."""
    return json.dumps(coerce_request_id(request_id))
