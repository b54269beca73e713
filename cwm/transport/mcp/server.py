"""The MCP face: the tools and resources over streamable HTTP of both protocol eras, or over stdio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastmcp.server.http import StarletteWithLifespan
from starlette.middleware import Middleware

from cwm.ports.agent_sessions import AgentSessions
from cwm.ports.changes import Changes
from cwm.ports.identity import Identity
from cwm.ports.meter import Metrics
from cwm.ports.resource_interest import ResourceInterest
from cwm.services.catalogue import Services
from cwm.transport.mcp.errors import CodedErrors
from cwm.transport.mcp.face import McpFace
from cwm.transport.mcp.resources import resources
from cwm.transport.mcp.sessions import SessionLayer
from cwm.transport.mcp.streams import EventStreams
from cwm.transport.mcp.subscriptions import Subscriptions
from cwm.transport.mcp.tools_sessions import session_tools
from cwm.transport.mcp.tools_system import system_tools
from cwm.transport.mcp.tools_windows import window_tools

PATH: Final = "/mcp"

_INSTRUCTIONS: Final = """\
CWM keeps the context windows of a language model: every session that runs through it, token for token.
session_create opens a session, session_generate speaks in it. window_freeze saves its context under a
name, window_thaw continues from there in a new session without computing it again, window_clone branches it.
window_list and window_status show what there is. A tool that fails answers {code, message, retryable, context}."""


def build_mcp(
    services: Services,
    identity: Identity,
    metrics: Metrics,
    *,
    version: str,
    sessions: AgentSessions,
    changes: Changes,
    interest: ResourceInterest,
) -> McpFace:
    """The server with everything on it. What ``FASTMCP_*`` could change is said here, so that it cannot."""
    face = McpFace(
        services,
        identity,
        metrics,
        EventStreams(sessions, changes, interest),
        Subscriptions(sessions, changes, interest, identity),
        name="cwm",
        instructions=_INSTRUCTIONS,
        version=version,
        middleware=[CodedErrors()],
        on_duplicate="error",
        mask_error_details=True,
        # The schema is the promise: "yes" is no boolean, least of all for force.
        strict_input_validation=True,
        client_log_level="error",
        tasks=False,
    )
    for each in (*window_tools(), *session_tools(), *system_tools()):
        face.add_tool(each)
    for each_resource in resources():
        face.add_resource(each_resource)
    return face


def mcp_app(
    face: McpFace,
    *,
    allowed_hosts: Sequence[str],
    allowed_origins: Sequence[str],
) -> StarletteWithLifespan:
    """Serve ``/mcp``. Mount it last at ``/`` and enter its lifespan.

    Hosts other than loopback and ``allowed_hosts`` get 421, browser origins not in ``allowed_origins`` 403.
    """
    app = face.http_app(
        path=PATH,
        transport="http",
        middleware=[
            Middleware(
                SessionLayer,
                path=PATH,
                identity=face.identity,
                sessions=face.streams.sessions,
                streams=face.streams,
                subscriptions=face.subscriptions,
            )
        ],
        json_response=False,
        stateless_http=True,
        host_origin_protection=True,
        allowed_hosts=list(allowed_hosts),
        allowed_origins=list(allowed_origins),
        session_idle_timeout="auto",
    )
    # FastMCP takes this one from its own environment, and it would publish tracebacks.
    app.debug = False
    return app
