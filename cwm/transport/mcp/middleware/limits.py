"""Limits on requests for tools, resources, prompts and completions, CWM's own and those of upstreams.

Lists and subscriptions have a limit of their own; pings and handshakes are not counted. A listener takes one of its principal's
places for open streams. A message of more than 64 KiB has its place, and was counted as a list, before it was read.
"""

from __future__ import annotations

from typing import Any, Final

from mcp_types import CallToolResult

from cwm.domain.errors import CwmError
from cwm.domain.limits import NO_TOOL
from cwm.services.access.limits import Limits, Release
from cwm.services.aside import Hold, held_by_its_work
from cwm.transport.http.request_keys import HELD
from cwm.transport.mcp.mcp_server import Handler, McpFace
from cwm.transport.mcp.requests.agent import Agency, Context, counted_session
from cwm.transport.mcp.requests.call import tool_call
from cwm.transport.mcp.requests.errors import error_result, protocol_error
from cwm.transport.mcp.requests.retry_after import tell_limit

_TOOLS: Final = "tools/call"
_LISTEN: Final = "subscriptions/listen"
_LIMITED: Final = (
    _TOOLS,
    "resources/read",
    "prompts/get",
    "completion/complete",
    "tasks/result",
    "tasks/cancel",
)

_LISTS: Final = (
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "prompts/list",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/get",
    "tasks/list",
)


class Limited:
    """Handlers that admit a request to the handler they replace, or refuse it."""

    def __init__(self, face: McpFace, limits: Limits, agency: Agency) -> None:
        self._face = face
        self._limits = limits
        self._agency = agency

    def install(self) -> None:
        """Replace the handlers. Call it last: a handler that is installed later is not limited."""
        for method in _LIMITED:
            self._face.replace_handler(method, self._limited)
        for method in _LISTS:
            self._face.replace_handler(method, self._listed)
        self._face.replace_handler(_LISTEN, self._listening)

    async def _listening(self, inner: Handler, context: Context, params: Any) -> Any:
        try:
            principal = await self._agency.principal(context)
            if _hold_of(context) is None:
                await self._limits.count_list(principal)
            async with self._limits.listening(principal):
                return await inner(context, params)
        except CwmError as error:
            return _refusal(context, error)

    async def _listed(self, inner: Handler, context: Context, params: Any) -> Any:
        try:
            principal = await self._agency.principal(context)
            hold = _hold_of(context)
            release = await self._limits.admit_list(principal) if hold is None else hold.shared()
        except CwmError as error:
            return _refusal(context, error)
        with held_by_its_work(release):
            return await inner(context, params)

    async def _limited(self, inner: Handler, context: Context, params: Any) -> Any:
        try:
            release = await self._admit(context)
        except CwmError as error:
            return _refusal(context, error)
        with held_by_its_work(release):
            return await inner(context, params)

    async def _admit(self, context: Context) -> Release:
        name, rates = None, NO_TOOL
        if context.method == _TOOLS:
            call = tool_call()
            principal, session = call.principal, call.counted_session
            name, rates = call.name, call.policy.rates
        else:
            principal, agent_session = await self._agency.asking(context)
            session = counted_session(context, agent_session)
        if (hold := _hold_of(context)) is None:
            return await self._limits.admit(principal, session, name, rates)
        await self._limits.count(principal, session, name, rates)
        return hold.shared()


def _hold_of(context: Context) -> Hold | None:
    """The place that the message took before it was read."""
    hold = None if context.request is None else context.request.scope.get(HELD)
    return hold if isinstance(hold, Hold) else None


def _refusal(context: Context, error: CwmError) -> CallToolResult:
    """The refusal as a tool result; for the other methods, raised as a JSON-RPC error, the only form they have."""
    tell_limit(context, error, as_429=context.method == _LISTEN)
    if context.method != _TOOLS:
        raise protocol_error(error) from error
    result = error_result(error)
    return CallToolResult(content=result.content, is_error=True, meta=result.meta)
