"""What a tool works on when its caller names no session: the conversation that the caller is in."""

from __future__ import annotations

from collections.abc import Mapping

from cwm.services.turns.finding.tool_caller import ToolCaller
from cwm.transport.mcp.mcp_server import Caller
from cwm.transport.mcp.requests.agent import meta_of
from cwm.transport.mcp.requests.call import current_call
from cwm.transport.mcp.requests.conversation import call_in, conversation_in


async def session_of(caller: Caller, session_id: str | None) -> str:
    """``session_id``, else the id of the conversation that the call comes from. CWM-1001 where nothing says which that is."""
    if session_id is not None:
        return session_id
    call = current_call()
    request = None if call is None else call.request
    meta, params = meta_of(request), (request.params if request is not None else None) or {}
    arguments = params.get("arguments")
    tool_caller = ToolCaller(
        conversation_in(meta),
        call_in(meta),
        "" if call is None else call.name,
        arguments if isinstance(arguments, Mapping) else {},
    )
    return await caller.services.calling_conversation(caller.principal, tool_caller)
