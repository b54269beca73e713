"""Builds the MCP face: tools and resources over streamable HTTP or stdio, for both protocol eras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import fastmcp
from fastmcp.server.http import StarletteWithLifespan
from fastmcp.tools import Tool
from sse_starlette.sse import AppStatus
from starlette.middleware import Middleware

from cwm.ports.changes import Changes
from cwm.ports.meter import Telemetry
from cwm.ports.resource_interest import ResourceInterest
from cwm.ports.tracing import UNTRACED, Tracer
from cwm.services.access.limits import Limits
from cwm.services.access.standing import Standing
from cwm.services.catalogue import Services
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.upstreams import Upstreams
from cwm.transport.mcp.context.resources import context_templates
from cwm.transport.mcp.context.tools import context_tools
from cwm.transport.mcp.contract.agents import agent_tools
from cwm.transport.mcp.contract.engines import engine_tools
from cwm.transport.mcp.contract.resources import resource_templates, resources
from cwm.transport.mcp.contract.sessions import session_tools
from cwm.transport.mcp.contract.system import system_tools
from cwm.transport.mcp.contract.tool import OwnTools
from cwm.transport.mcp.contract.turns import turn_tools
from cwm.transport.mcp.contract.windows import window_tools
from cwm.transport.mcp.listening.handshake_sessions import SessionLayer
from cwm.transport.mcp.listening.streams import EventStreams
from cwm.transport.mcp.listening.subscriptions import Subscriptions
from cwm.transport.mcp.mcp_server import McpFace
from cwm.transport.mcp.middleware.layers import Layers
from cwm.transport.mcp.middleware.limits import Limited
from cwm.transport.mcp.middleware.measures import Measures
from cwm.transport.mcp.middleware.messages import Messages
from cwm.transport.mcp.requests.agent import Agency
from cwm.transport.mcp.requests.call import ToolCalls
from cwm.transport.mcp.requests.errors import CodedErrors
from cwm.transport.mcp.requests.header_values import TrimmedHeaderValues
from cwm.transport.mcp.requests.permissions import Permissions
from cwm.transport.mcp.results.budgets import References, ResultBudgets
from cwm.transport.mcp.results.tools import result_tools
from cwm.transport.mcp.upstreams.calls import UpstreamCalls
from cwm.transport.mcp.upstreams.instructions import UpstreamInstructions
from cwm.transport.mcp.upstreams.lists import UpstreamLists
from cwm.transport.mcp.upstreams.rounds import state_security
from cwm.transport.mcp.upstreams.tasks import TaskRequests

PATH: Final = "/mcp"

_INSTRUCTIONS: Final = """\
CWM records conversations with a language model, token for token, so that they can be saved and continued.
session_create opens a session, session_generate takes a turn in it. window_freeze saves the session's context as
a named window, window_thaw continues from the window in a new session without computing it again, window_clone
gives a window a second name. window_list and window_status show what there is. context_set stores what one agent
learned for the others of its workspace or tenant; use context_get and context_list before you look something up
again. A tool result too large for your context comes as a preview with a handle and a cursor: result_query
searches the stored result, result_read reads on. A tool that fails answers {code, message, retryable, context}."""


def build_mcp(
    services: Services,
    agency: Agency,
    upstreams: Upstreams,
    answers: SharedAnswers,
    changes: Changes,
    metrics: Telemetry,
    *,
    version: str,
    limits: Limits,
    secrets: Sequence[bytes],
    interest: ResourceInterest | None = None,
    tracer: Tracer = UNTRACED,
) -> McpFace:
    """The complete MCP server. It sets every option that a ``FASTMCP_*`` variable could change, so that none can.

    ``secrets`` seal the state that an upstream needs between two rounds of a call: the first seals, all open.
    ``interest`` gets the resources that clients subscribe to; the upstreams by default.
    """
    # FastMCP's spans would duplicate CWM's, and contain exception messages.
    fastmcp.settings.telemetry_mode = "off"
    session_store, resource_interest = agency.agents.store, interest or upstreams.listening
    tools: dict[str, Tool] = {}
    standing = agency.standing or Standing(agency.identity)
    face = McpFace(
        services,
        agency,
        metrics,
        EventStreams(agency.agents, changes, resource_interest, standing, admit=limits.listening),
        Subscriptions(session_store, changes, resource_interest, agency, standing),
        tools,
        name="cwm",
        instructions=_INSTRUCTIONS,
        version=version,
        request_state_security=state_security(secrets),
        middleware=[
            Layers(
                CodedErrors(services.journal, agency),
                Permissions(agency, services.operators),
                ResultBudgets(services.delivery),
                References(services.by_reference, services.delivery),
                UpstreamCalls(upstreams, answers, services.upstream_tasks),
                OwnTools(),
            )
        ],
        on_duplicate="error",
        mask_error_details=True,
        # Arguments must match the schema: "yes" is not a boolean, least of all for force.
        strict_input_validation=True,
        # CWM's schemas are inline already; those of upstreams are not CWM's to rewrite.
        dereference_schemas=False,
        client_log_level="error",
        tasks=False,
    )
    face.change_answers(UpstreamInstructions(upstreams, agency))
    face.watch_messages(Messages(tracer, agency))
    for own_tool in (
        *window_tools(),
        *session_tools(),
        *turn_tools(),
        *system_tools(),
        *engine_tools(),
        *agent_tools(),
        *context_tools(),
        *result_tools(),
    ):
        face.add_tool(own_tool)
    for resource in resources():
        face.add_resource(resource)
    for template in (*context_templates(), *resource_templates()):
        face.add_template(template)
    UpstreamLists(face, upstreams, agency).install()
    calls = ToolCalls(agency, upstreams, tools, lambda: services.delivery.budgets.policies)
    TaskRequests(face, services.upstream_tasks, agency, calls).install()
    Limited(face, limits, agency).install()
    face.watch_messages(Measures(metrics))
    face.watch_messages(calls)
    return face


def mcp_app(face: McpFace, limits: Limits) -> StarletteWithLifespan:
    """The app that serves ``/mcp``.

    Mount it last at ``/``, enter its lifespan, and put :class:`~cwm.transport.http.front.Front` before it.
    """
    app = face.http_app(
        path=PATH,
        transport="http",
        middleware=[
            Middleware(TrimmedHeaderValues),
            Middleware(
                SessionLayer,
                path=PATH,
                identity=face.agency.identity,
                limits=limits,
                sessions=face.agency.agents.store,
                journal=face.services.journal,
                streams=face.streams,
                subscriptions=face.subscriptions,
            ),
        ],
        json_response=False,
        stateless_http=True,
        # Bypass (decision 0028): the front checks Host and Origin for every route.
        host_origin_protection=False,
        session_idle_timeout="auto",
    )
    # It would cut off the answers of running calls at the signal; ``end_streams`` ends only the streams of listeners.
    AppStatus.enable_automatic_graceful_drain = False
    # FastMCP sets this from its own environment, and it would publish tracebacks.
    app.debug = False
    return app
