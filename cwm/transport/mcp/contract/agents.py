"""Tools on agent sessions, for clients whose protocol version has no sessions."""

from __future__ import annotations

from typing import Annotated

from fastmcp.tools import FunctionTool
from pydantic import Field

from cwm.transport.mcp.contract import inputs
from cwm.transport.mcp.contract.schemas import agents as schemas
from cwm.transport.mcp.contract.tool import tool
from cwm.transport.mcp.mcp_server import CALLER, Caller


async def agent_session_create(caller: Caller = CALLER) -> schemas.AgentSessionCreated:
    """Open an agent session, which keeps this agent's state apart from that of your other agents.

    Only clients of MCP 2026-07-28 need it, and only if several agents work for the same user: without it
    they share their state in stateful upstream servers. Pass agent_session with every call of a tool that
    takes it, or as dev.cwm/agent-session in a request's _meta. Clients of earlier MCP versions have an agent
    session already. It ends with agent_session_end, or after expires_in_seconds without use.

    Errors: CWM-4001 the shared store cannot be reached (retryable).
    """
    handle = await caller.agents.begin(caller.principal)
    return {"success": True, "agent_session": handle, "expires_in_seconds": caller.agents.ttl_seconds}


async def agent_session_end(
    agent_session: Annotated[
        inputs.AgentSession, Field(description="The agent_session that agent_session_create returned")
    ],
    caller: Caller = CALLER,
) -> schemas.AgentSessionEnded:
    """End an agent session: upstream servers drop the state that they kept for it.

    Errors: CWM-1003 malformed field; CWM-2004 no such agent session, or another user's; CWM-4001/4002 the
    shared store cannot be reached (retryable).
    """
    await caller.agents.end(caller.principal, agent_session)
    return {"success": True, "agent_session": agent_session}


def agent_tools() -> list[FunctionTool]:
    return [
        tool(agent_session_create, "Open an agent session", schemas.AgentSessionCreated),
        tool(
            agent_session_end,
            "End an agent session",
            schemas.AgentSessionEnded,
            destructive=True,
            idempotent=True,
        ),
    ]
