"""The MCP face on a real loopback socket, over a real registry, in front of an engine that is not there."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import uvicorn
from fastmcp import Client as FastMcpClient
from fastmcp.client.transports import StreamableHttpTransport
from mcp import Client as SdkClient
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.types import ASGIApp

from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.sql import schema
from cwm.domain.access import EVERY, granted
from cwm.domain.budgets import Budgets
from cwm.domain.errors import SecurityError
from cwm.domain.principal import Principal
from cwm.domain.upstream import UpstreamSpec
from cwm.ports.identity import Identity
from cwm.ports.resource_interest import ResourceInterest
from cwm.services.catalogue import Services
from cwm.settings import Database, Engine, Isolation, Limits, Settings, Shared, StoredResults, Tasks
from cwm.transport.endpoints.health import routes as health_routes
from cwm.transport.http.front import Front, Refusal
from cwm.transport.http.server import DrainingServer
from cwm.transport.mcp.assembly import build_mcp, mcp_app
from cwm.transport.mcp.mcp_server import McpFace
from cwm.transport.mcp.requests.agent import Agency
from cwm.wiring.parts import Parts, build_parts

LEGACY = "legacy"
MODERN = "2026-07-28"


class HeaderIdentity:
    """Callers who say who they are; only right in a test."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        if headers.get("x-tenant") == "nobody":
            raise SecurityError("Nobody may enter.")
        scopes = granted(headers["x-scopes"].split()) if "x-scopes" in headers else EVERY
        return Principal(headers.get("x-tenant", "acme"), headers.get("x-subject", "agent"), scopes)


@dataclass(frozen=True, slots=True)
class Gateway:
    url: str
    parts: Parts
    face: McpFace

    @property
    def sessions(self) -> InProcessAgentSessions:
        """As they are kept in process, to look inside."""
        kept = self.parts.base.shared.agent_sessions
        assert isinstance(kept, InProcessAgentSessions)
        return kept


@dataclass(frozen=True, slots=True)
class ToolReply:
    """A tool's result as either SDK reads it."""

    is_error: bool
    text: str
    structured: dict[str, Any] | None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        assert self.is_error, self.text
        return dict(json.loads(self.text))

    @property
    def value(self) -> dict[str, Any]:
        assert not self.is_error, self.text
        assert self.structured is not None
        return self.structured


@dataclass(frozen=True, slots=True)
class Agent:
    """A client of one kind and era, acting for one tenant."""

    client: Any
    tenant: str

    async def call(self, tool: str, arguments: dict[str, Any] | None = None) -> ToolReply:
        if isinstance(self.client, FastMcpClient):
            result = await self.client.call_tool_mcp(tool, arguments or {})
        else:
            result = await self.client.call_tool(tool, arguments or {})
        assert isinstance(result, CallToolResult)
        first = result.content[0]
        assert isinstance(first, TextContent)
        return ToolReply(
            bool(result.is_error), first.text, result.structured_content, dict(result.meta or {})
        )


@asynccontextmanager
async def gateway(
    folder: Path,
    *,
    services: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    upstreams: Sequence[UpstreamSpec] = (),
    interest: ResourceInterest | None = None,
    shared: Shared | None = None,
    budgets: Budgets | None = None,
    limits: Limits | None = None,
    stored_results: StoredResults | None = None,
    tasks: Tasks | None = None,
) -> AsyncIterator[Gateway]:
    """``services`` stand in for those of the same name."""
    with nobody_listens() as url:
        settings = Settings(
            database=Database(db_path=folder / "cwm.db"),
            engine=engine or Engine(vllm_url=url, lmcache_url=url, coordinator_url=url),
            isolation=Isolation(secret="a test's secret", tenant="acme"),
            shared=shared or Shared(),
            budgets=budgets or Budgets(),
            limits=limits or Limits(),
            stored_results=stored_results or StoredResults(),
            tasks=tasks or Tasks(),
        )
        await schema.upgrade(settings.database.url())
        parts = build_parts(settings)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(parts.close())
            await parts.agent_side.upstreams.configure(upstreams)
            await stack.enter_async_context(hearing(parts))
            face = faced(parts, replace(parts.services, **(services or {})), interest)
            app = assembled(parts, face)
            served_at = await stack.enter_async_context(serving(app, face.end_streams))
            yield Gateway(served_at, parts, face)


@asynccontextmanager
async def hearing(parts: Parts) -> AsyncIterator[None]:
    """Others that share the store are heard."""
    reading = asyncio.create_task(parts.base.shared.read())
    try:
        yield
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


def faced(
    parts: Parts,
    services: Services | None = None,
    interest: ResourceInterest | None = None,
    identity: Identity | None = None,
) -> McpFace:
    return build_mcp(
        services or parts.services,
        Agency(identity or HeaderIdentity(), parts.agent_side.agents),
        parts.agent_side.upstreams,
        parts.agent_side.answers,
        parts.base.shared.changes,
        parts.base.meter,
        version="9.9.9",
        limits=parts.base.limits,
        secrets=[b"a test's secret"],
        interest=interest,
    )


def assembled(parts: Parts, face: McpFace) -> Starlette:
    mcp = mcp_app(face, parts.base.limits)
    return Starlette(
        routes=[*health_routes(face.services.inspect, parts.base.meter), Mount("/", mcp)],
        middleware=[Middleware(Front, hosts=["cwm.test"], origins=["https://app.test"], on_refusal=_unheard)],
        lifespan=mcp.lifespan,
    )


async def _unheard(_why: Refusal, _value: str) -> None:
    """Who is kept out is no matter of these tests."""


@asynccontextmanager
async def serving(
    app: ASGIApp, end_streams: Callable[[], None] = lambda: None, *, port: int = 0
) -> AsyncIterator[str]:
    """The URL of ``app`` on a socket that listens before anyone can ask."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    server = DrainingServer(config, end_streams)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextmanager
def nobody_listens() -> Iterator[str]:
    """A URL at which connections are refused for as long as this lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@asynccontextmanager
async def fastmcp_agent(
    url: str, era: str, tenant: str | None = None, **options: Any
) -> AsyncIterator[Agent]:
    tenant = tenant or f"t-{uuid4().hex[:8]}"
    transport = StreamableHttpTransport(f"{url}/mcp", headers={"x-tenant": tenant})
    async with FastMcpClient(transport, mode=era, **options) as client:
        yield Agent(client, tenant)


@asynccontextmanager
async def sdk_agent(url: str, era: str, tenant: str | None = None, **options: Any) -> AsyncIterator[Agent]:
    """The protocol's own client, which knows nothing of FastMCP."""
    tenant = tenant or f"t-{uuid4().hex[:8]}"
    async with (
        httpx2.AsyncClient(headers={"x-tenant": tenant}, timeout=30, trust_env=False) as http,
        SdkClient(streamable_http_client(f"{url}/mcp", http_client=http), mode=era, **options) as client,
    ):
        yield Agent(client, tenant)
