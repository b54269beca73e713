"""The MCP server, and the dependency that gives a tool its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.dependencies import get_context
from fastmcp.tools import Tool
from mcp.server.context import ServerMiddleware

from cwm.domain.errors import InternalError
from cwm.domain.principal import Principal
from cwm.ports.meter import Metrics
from cwm.services.agents.agents import Agents
from cwm.services.agents.context_manager import ContextManager
from cwm.services.catalogue import Services
from cwm.transport.mcp.listening.cancellation import Cancellations
from cwm.transport.mcp.listening.streams import EventStreams
from cwm.transport.mcp.listening.subscriptions import Subscriptions
from cwm.transport.mcp.requests.agent import Agency, Context, sdk_context
from cwm.transport.mcp.requests.call import current_call

Handler = Callable[[Context, Any], Awaitable[Any]]
"""A handler of FastMCP's low-level server: FastMCP publishes no seam below its components."""

Replacement = Callable[[Handler, Context, Any], Awaitable[Any]]
"""A handler that gets the one that it replaces."""


class McpFace(FastMCP[Any]):
    """A FastMCP server with the services that its tools use and the streams that notify clients of changes.

    ``tools`` collects the added tools by name, for the layers that look them up.
    """

    def __init__(
        self,
        services: Services,
        agency: Agency,
        metrics: Metrics,
        streams: EventStreams,
        subscriptions: Subscriptions,
        tools: dict[str, Tool],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._own_tools = tools
        self.services = services
        self.agency = agency
        self.metrics = metrics
        self.streams = streams
        self.subscriptions = subscriptions
        subscriptions.serve_on(self, streams)
        self._mcp_server.middleware.append(Cancellations(subscriptions.changes))

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        own_tool = super().add_tool(tool)
        self._own_tools[own_tool.name] = own_tool
        return own_tool

    def replace_handler(self, method: str, replacement: Replacement) -> None:
        entry = self._mcp_server.get_request_handler(method)
        assert entry is not None
        self._mcp_server.add_request_handler(method, entry.params_type, partial(replacement, entry.handler))

    def watch_messages(self, middleware: ServerMiddleware[Any]) -> None:
        """Add ``middleware`` as the outermost one, which sees every message first."""
        self._mcp_server.middleware.insert(0, middleware)

    def change_answers(self, middleware: ServerMiddleware[Any]) -> None:
        """Add ``middleware`` as the innermost one, which gets every answer first, as JSON."""
        self._mcp_server.middleware.append(middleware)

    def end_streams(self) -> None:
        """End the streams of all listeners, so that a stopping gateway need not wait for them."""
        self.streams.close()
        self.subscriptions.close()


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a tool, and the services that the tool uses."""

    principal: Principal
    agent: ContextManager
    agents: Agents
    services: Services
    metrics: Metrics


async def _caller() -> Caller:
    context = get_context()
    face, request = context.fastmcp, context.request_context
    if not isinstance(face, McpFace):
        raise InternalError("This tool needs CWM's own MCP server.")
    call = current_call()
    if call is None:
        principal = await face.agency.principal(sdk_context(request))
        caller = await face.agency.caller(sdk_context(request))
    else:
        principal, caller = call.principal, await call.caller()
    agent = caller.agent
    # The agent's principal has the scopes of the request that began the agent session.
    return Caller(principal, agent, face.agency.agents, face.services, face.metrics)


CALLER: Final[Caller] = Depends(_caller)
