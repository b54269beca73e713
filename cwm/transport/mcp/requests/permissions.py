"""Which scopes each tool and resource needs, and the middleware that requires them.

Lists leave out the tools and resources that the caller may not use; using one anyway is refused with CWM-9002.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastmcp.resources import Resource, ResourceResult, ResourceTemplate
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import Tool, ToolResult
from mcp_types import INVALID_REQUEST

from cwm.domain.access import NOTHING, AccessScope
from cwm.domain.changes import SESSIONS_URI, WINDOWS_URI
from cwm.domain.errors import CwmError, InsufficientScopeError
from cwm.domain.operators import Operators
from cwm.domain.results import RESULTS_URI
from cwm.transport.mcp.requests.agent import (
    Agency,
    CallContext,
    Context,
    NextCall,
    NextRead,
    ReadContext,
    request_of,
)
from cwm.transport.mcp.requests.call import ToolCall, tool_call
from cwm.transport.mcp.requests.errors import RefusedError, protocol_error

ADMIN: Final = frozenset({AccessScope.ADMIN})
OF_UPSTREAMS: Final = frozenset({AccessScope.TOOLS_CALL})

_READ: Final = frozenset({AccessScope.WINDOWS_READ})
_WRITE: Final = frozenset({AccessScope.WINDOWS_WRITE})
_TALK: Final = frozenset({AccessScope.SESSIONS_WRITE})
_LOOK_UP: Final = frozenset({AccessScope.CONTEXT_READ})
_KEEP: Final = frozenset({AccessScope.CONTEXT_WRITE})

TOOLS: Final[Mapping[str, frozenset[AccessScope]]] = {
    "window_list": _READ,
    "window_status": _READ,
    "window_freeze": _WRITE,
    "window_clone": _WRITE,
    "window_share": _WRITE,
    "window_rename": _WRITE,
    "window_delete": _WRITE,
    "window_thaw": _READ | _TALK,
    "session_list": _READ,
    "turn_log": _READ,
    "turn_show": _READ,
    "turn_search": _READ,
    "turn_diff": _READ,
    "turn_left_out": _READ,
    "turn_branch": _READ | _TALK,
    "turn_revert": _TALK,
    "turn_delete": _TALK,
    "turn_tag": _TALK,
    "session_unfreeze": _TALK,
    "session_merge": _TALK,
    "session_share": _TALK,
    "session_create": _TALK,
    "session_generate": _TALK,
    "session_delete": _TALK,
    "context_get": _LOOK_UP,
    "context_list": _LOOK_UP,
    "context_stats": _LOOK_UP,
    "context_set": _KEEP,
    "context_delete": _KEEP,
    "context_snapshot": _KEEP,
    "context_restore": _KEEP,
    "cache_stats": _READ,
    "get_metrics_data": ADMIN,
    "engine_list": ADMIN,
    "engine_drain": ADMIN,
    "engine_upgrade": ADMIN,
    "session_move": ADMIN,
    # These concern only the caller: its own agent sessions, and results of its own calls.
    "agent_session_create": NOTHING,
    "agent_session_end": NOTHING,
    "result_read": NOTHING,
    "result_query": NOTHING,
    "health_check": NOTHING,
}
"""The scopes for each of CWM's tools; a tool that is missing here needs ``admin``."""

OF_ALL_TENANTS: Final = frozenset({"get_metrics_data", "engine_upgrade"})
"""Tools for who runs the gateway: their ``admin`` is that of the gateway's own tenant."""

_RESOURCES: Final[Mapping[str, frozenset[AccessScope]]] = {
    WINDOWS_URI: _READ,
    SESSIONS_URI: _READ,
    "cwm://turns": _READ,
    "cwm://stats": _READ,
    "health://status": NOTHING,
    RESULTS_URI: NOTHING,
    "cwm://context": _LOOK_UP,
}
_OWN_SCHEMES: Final = ("cwm://", "health://")


def of_resource(uri: str) -> frozenset[AccessScope]:
    """The scopes that a resource or template needs, by its URI."""
    # Schemes and hosts may be in upper or lower case.
    uri = re.split(r"[?{]", uri.lower(), maxsplit=1)[0]
    if not uri.startswith(_OWN_SCHEMES):
        return OF_UPSTREAMS
    for own_uri, scopes in _RESOURCES.items():
        if uri == own_uri or uri.startswith(f"{own_uri}/"):
            return scopes
    return ADMIN


class Permissions(Middleware):
    """The layer inside the one that codes errors: a caller that may not call a tool learns nothing about its arguments."""

    def __init__(self, agency: Agency, operators: Operators) -> None:
        self._agency = agency
        self._operators = operators

    async def on_call_tool(self, context: CallContext, call_next: NextCall) -> ToolResult:
        try:
            call = tool_call()
            operators = self._operators if call.name in OF_ALL_TENANTS else None
            await self._agency.admit(call.principal, _needed(call), call.name, operators)
        except CwmError as refused:
            raise RefusedError(refused) from refused
        return await call_next(context)

    async def on_read_resource(self, context: ReadContext, call_next: NextRead) -> ResourceResult:
        scopes = of_resource(str(context.message.uri))
        await require(self._agency, request_of(context), scopes, "resources/read")
        return await call_next(context)

    async def on_list_tools(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Tool]]
    ) -> Sequence[Tool]:
        principal = await self._agency.principal(request_of(context))
        hidden = frozenset() if self._operators.have(principal) else OF_ALL_TENANTS
        return [
            tool
            for tool in await call_next(context)
            if TOOLS.get(tool.name, ADMIN) <= principal.scopes and tool.name not in hidden
        ]

    async def on_list_resources(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Resource]]
    ) -> Sequence[Resource]:
        scopes = await self._held(context)
        return [each for each in await call_next(context) if of_resource(str(each.uri)) <= scopes]

    async def on_list_resource_templates(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[ResourceTemplate]]
    ) -> Sequence[ResourceTemplate]:
        scopes = await self._held(context)
        return [each for each in await call_next(context) if of_resource(each.uri_template) <= scopes]

    async def _held(self, context: MiddlewareContext[Any]) -> frozenset[AccessScope]:
        return (await self._agency.principal(request_of(context))).scopes


def _needed(call: ToolCall) -> frozenset[AccessScope]:
    of_upstream = NOTHING if call.upstream is None else OF_UPSTREAMS
    if call.name in TOOLS:
        return TOOLS[call.name] | of_upstream
    return of_upstream if call.own is None else ADMIN


async def require(
    agency: Agency, context: Context | None, scopes: frozenset[AccessScope], method: str
) -> None:
    """As :meth:`Agency.admit`, for the principal that makes the request; raises a JSON-RPC error."""
    try:
        await agency.admit(await agency.principal(context), scopes, method)
    except InsufficientScopeError as refused:
        raise protocol_error(refused, INVALID_REQUEST) from refused
