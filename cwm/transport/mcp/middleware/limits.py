"""Limits on requests for tools, resources, prompts and completions, CWM's own and those of upstreams.

Lists and subscriptions have a limit of their own; pings and handshakes are not counted. A listener also takes one of
its principal's places for open streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types import INTERNAL_ERROR, CallToolResult

from cwm.domain.errors import CwmError
from cwm.services.access.limits import Limits, Release
from cwm.services.aside import held_by_its_work
from cwm.transport.mcp.mcp_server import McpFace
from cwm.transport.mcp.requests.agent import Agency, counted_session
from cwm.transport.mcp.requests.call import tool_call
from cwm.transport.mcp.requests.errors import error_result
from cwm.transport.mcp.requests.retry_after import tell_limit

_TOOLS: Final = "tools/call"
_LISTEN: Final = "subscriptions/listen"
_LIMITED: Final = (_TOOLS, "resources/read", "prompts/get", "completion/complete")

_LISTS: Final = (
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "prompts/list",
    "resources/subscribe",
    "resources/unsubscribe",
)

_Handler = Callable[[ServerRequestContext[Any, Any], Any], Awaitable[Any]]


class Limited:
    """Handlers that admit a request to the handler they replace, or refuse it."""

    def __init__(self, face: McpFace, limits: Limits, agency: Agency) -> None:
        self._face = face
        self._limits = limits
        self._agency = agency

    def install(self) -> None:
        """Replace the handlers. Call it last: a handler that is installed later is not limited."""
        server = self._face._mcp_server  # noqa: SLF001 - FastMCP publishes no seam below its components
        for method in (*_LIMITED, *_LISTS, _LISTEN):
            entry = server.get_request_handler(method)
            assert entry is not None
            inner = entry.handler
            if method == _LISTEN:
                limited = self._listening(inner)
            else:
                limited = self._limited(method, inner) if method in _LIMITED else self._listed(method, inner)
            server.add_request_handler(method, entry.params_type, limited)

    def _listening(self, inner: _Handler) -> _Handler:
        async def listening(context: ServerRequestContext[Any, Any], params: Any) -> Any:
            try:
                principal = await self._agency.principal(context)
                await self._limits.admit_list(principal)
                async with self._limits.listening(principal):
                    return await inner(context, params)
            except CwmError as refused:
                return _refusal(context, _LISTEN, refused)

        return listening

    def _listed(self, method: str, inner: _Handler) -> _Handler:
        async def listed(context: ServerRequestContext[Any, Any], params: Any) -> Any:
            try:
                await self._limits.admit_list(await self._agency.principal(context))
            except CwmError as refused:
                return _refusal(context, method, refused)
            return await inner(context, params)

        return listed

    def _limited(self, method: str, inner: _Handler) -> _Handler:
        async def limited(context: ServerRequestContext[Any, Any], params: Any) -> Any:
            try:
                release = await self._admit(context, method)
            except CwmError as refused:
                return _refusal(context, method, refused)
            with held_by_its_work(release):
                return await inner(context, params)

        return limited

    async def _admit(self, context: ServerRequestContext[Any, Any], method: str) -> Release:
        if method == _TOOLS:
            call = tool_call()
            return await self._limits.admit(
                call.principal, call.counted_session, call.name, call.policy.rates
            )
        principal, session = await self._agency.asking(context)
        return await self._limits.admit(principal, counted_session(context, session))


def _refusal(context: ServerRequestContext[Any, Any], method: str, refused: CwmError) -> CallToolResult:
    """The refusal as a tool result; for the other methods, raised as a JSON-RPC error, the only form they have."""
    tell_limit(context, refused, as_429=method == _LISTEN)
    if method != _TOOLS:
        raise MCPError(INTERNAL_ERROR, refused.message, refused.as_dict()) from refused
    result = error_result(refused)
    return CallToolResult(content=result.content, is_error=True, meta=result.meta)
