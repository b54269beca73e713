"""Clients of the handshake era give a request up by a message of its own, which any replica may get.

The SDK looks for the request on the connection that the message came by, and here every message has its own.
A client of 2026-07-28 just closes the request's stream; over stdio the connection is one.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp_types import RequestId

from cwm.background import BackgroundTasks
from cwm.domain.changes import Change, ChangeKind
from cwm.ports.changes import Changes
from cwm.transport.http.request_keys import AGENT_SESSION


class Cancellations:
    """Middleware of the low-level server: knows the requests of MCP sessions that are being answered here."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._answering: dict[tuple[str, str], anyio.CancelScope] = {}
        self._telling = BackgroundTasks()
        changes.subscribe(self._hear)

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        session_id = None if ctx.request is None else ctx.request.scope.get(AGENT_SESSION)
        if session_id is None:
            return await call_next(ctx)
        if ctx.method == "notifications/cancelled":
            self._tell(session_id, cancelled_request_id_from_params(ctx.params))
        if ctx.request_id is None:
            return await call_next(ctx)
        key = (session_id, _spelled(ctx.request_id))
        with anyio.CancelScope() as scope:
            self._answering[key] = scope
            try:
                return await call_next(ctx)
            finally:
                # A client that uses an id twice takes the place of its own earlier request.
                if self._answering.get(key) is scope:
                    del self._answering[key]
        raise MCPError(REQUEST_CANCELLED, "Request cancelled")

    def _tell(self, session_id: str, request_id: RequestId | None) -> None:
        if request_id is None:
            return
        given_up = Change(ChangeKind.GIVEN_UP, _spelled(request_id), session_id)
        # Its own task: the message is answered, and all that waits for it ended, before others have heard.
        self._telling.start(self._changes.publish(given_up))

    def _hear(self, change: Change) -> None:
        if change.kind is ChangeKind.GIVEN_UP and change.agent_session and change.uri:
            scope = self._answering.get((change.agent_session, change.uri))
            if scope is not None:
                scope.cancel()


def _spelled(request_id: RequestId) -> str:
    """The same for 1 and "1": there are clients that give up the one for the other."""
    return json.dumps(coerce_request_id(request_id))
