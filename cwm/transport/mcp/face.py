"""The MCP server, and how a tool learns who calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.dependencies import get_context, get_http_request

from cwm.domain.errors import InternalError
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity
from cwm.ports.meter import Metrics
from cwm.services.catalogue import Services
from cwm.transport.mcp.scope import PRINCIPAL
from cwm.transport.mcp.streams import EventStreams
from cwm.transport.mcp.subscriptions import Subscriptions


class McpFace(FastMCP[Any]):
    """A FastMCP server that carries what its tools ask of the gateway, and tells clients what changes."""

    def __init__(
        self,
        services: Services,
        identity: Identity,
        metrics: Metrics,
        streams: EventStreams,
        subscriptions: Subscriptions,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.services = services
        self.identity = identity
        self.metrics = metrics
        self.streams = streams
        self.subscriptions = subscriptions
        subscriptions.serve_on(self, streams)

    def end_streams(self) -> None:
        """Let go of every client that only listens, so that a stopping gateway need not wait for them."""
        self.streams.close()
        self.subscriptions.close()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and whom they can ask."""

    principal: Principal
    services: Services
    metrics: Metrics


async def _caller() -> Caller:
    """Over HTTP the session layer has authenticated the request; over stdio there is nothing to show."""
    face = get_context().fastmcp
    if not isinstance(face, McpFace):
        raise InternalError("This tool needs CWM's own MCP server.")
    try:
        request = get_http_request()
    except RuntimeError:
        principal = await face.identity.authenticate({})
    else:
        principal = request.scope[PRINCIPAL]
    return Caller(principal, face.services, face.metrics)


CALLER: Final[Caller] = Depends(_caller)
