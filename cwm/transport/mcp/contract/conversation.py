"""What a tool works on when its caller names no session: the conversation that the caller is in."""

from __future__ import annotations

from cwm.transport.mcp.mcp_server import Caller
from cwm.transport.mcp.requests.agent import meta_of
from cwm.transport.mcp.requests.call import current_call
from cwm.transport.mcp.requests.conversation import call_in, conversation_in


async def session_of(caller: Caller, session_id: str | None) -> str:
    """``session_id``, else the id of the caller's conversation. CWM-1003 that names the sessions it may be, CWM-2001."""
    if session_id is not None:
        return session_id
    call = current_call()
    meta = meta_of(None if call is None else call.request)
    conversations = caller.services.conversations
    return await conversations.current(caller.principal, conversation_in(meta), call_in(meta))
