"""The composition root: settings in, ASGI application out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from cwm import __version__
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.local.secret import signing_secrets
from cwm.ports.identity import Identity
from cwm.settings import Settings
from cwm.transport.endpoints.description import routes as description_routes
from cwm.transport.endpoints.health import routes as health_routes
from cwm.transport.endpoints.upkeep import routes as upkeep_routes
from cwm.transport.http.body_limit import BodyLimit
from cwm.transport.http.correlation import Correlated
from cwm.transport.http.measured import Measured
from cwm.transport.http.origin import OriginLayer
from cwm.transport.http.server import GatewayServer
from cwm.transport.http.shortcut import Shortcut, WithoutSlash
from cwm.transport.llm.routes import routes as openai_routes
from cwm.transport.mcp.assembly import PATH as MCP_PATH
from cwm.transport.mcp.assembly import build_mcp, mcp_app
from cwm.transport.mcp.mcp_server import McpFace
from cwm.transport.mcp.requests.agent import Agency
from cwm.transport.mcp.stdio import serve_stdio
from cwm.wiring.access import guard, refuse_open_socket
from cwm.wiring.console import add_gate, console_routes
from cwm.wiring.front import add_front
from cwm.wiring.lifetime import Drain, require_schema, running
from cwm.wiring.memory import settle_memory
from cwm.wiring.parts import Parts, build_parts


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Parts]:
    """The parts without a face, for commands that work beside a gateway or without one."""
    parts = build_parts(settings)
    async with parts.close():
        await require_schema(settings, parts)
        yield parts


def create_app(settings: Settings) -> FastAPI:
    """The gateway as an ASGI application. Its lifespan checks the schema and opens the pools."""
    refuse_open_socket(settings)
    return assemble(settings, build_parts(settings))


def assemble(settings: Settings, parts: Parts) -> FastAPI:
    """Add the faces and the middleware to the parts."""
    face = _face(settings, parts, parts.base.access.identity)
    mcp = mcp_app(face, parts.base.limits)
    drain = Drain(settings.http.drain_seconds, SystemClock())

    def end_streams() -> None:
        drain.begin()
        face.end_streams()
        parts.services.live.close()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running(settings, parts, drain), mcp.lifespan(mcp):
            settle_memory()
            yield

    app = FastAPI(
        title="CWM",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # CWM has its own spans, metrics and logs; FastAPI's would duplicate them.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.parts, app.state.face, app.state.end_streams = parts, face, end_streams
    app.add_middleware(Shortcut, path=MCP_PATH, to=mcp)
    app.add_middleware(
        BodyLimit,
        limits=parts.base.limits,
        max_bytes=settings.http.max_body_bytes,
        most_values=settings.http.max_body_values,
    )
    app.router.routes.extend(health_routes(parts.services.inspect, parts.base.meter))
    app.router.routes.extend(description_routes(__version__))
    app.router.routes.extend(upkeep_routes(parts.upkeep.reconcile, parts.base.limits))
    app.router.routes.extend(console_routes(settings, parts.services, parts.base.access, parts.base.limits))
    app.router.routes.extend(openai_routes(parts.engine_side.pass_through, parts.base.access.identity))
    add_gate(app, settings, parts.base.access)
    guard(app, settings, parts.base.access)
    app.mount("/", mcp)
    add_front(app, settings, parts.base.audit, SystemClock())
    app.add_middleware(OriginLayer, trusted=settings.http.proxies())
    app.add_middleware(Measured, meter=parts.base.meter, paths=_paths(app))
    app.add_middleware(Correlated, tracer=parts.base.tracer, messages_at=MCP_PATH)
    app.add_middleware(WithoutSlash, path=MCP_PATH)
    return app


def _paths(app: FastAPI) -> frozenset[str]:
    """The paths of all routes without a parameter, and the MCP path."""
    own = (getattr(route, "path", "") for route in app.router.routes)
    return frozenset(path for path in own if path and "{" not in path) | {MCP_PATH}


async def run_stdio(settings: Settings) -> None:
    """Serve MCP on standard input and output until the client closes them, or until cancelled."""
    parts = build_parts(settings)
    async with running(settings, parts, Drain(settings.http.drain_seconds, SystemClock())):
        settle_memory()
        # The process that started this one is its only client.
        await serve_stdio(_face(settings, parts, LocalIdentity(settings.isolation.tenant)))


async def run(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then let running streams finish. ``ready`` is called with the URL."""
    await GatewayServer(settings, create_app(settings), ready or (lambda _url: None)).serve()


def _face(settings: Settings, parts: Parts, identity: Identity) -> McpFace:
    access = parts.base.access
    agency = Agency(identity, parts.agent_side.agents, access.refusals, access.standing)
    return build_mcp(
        parts.services,
        agency,
        parts.agent_side.upstreams,
        parts.agent_side.answers,
        parts.base.shared.changes,
        parts.base.meter,
        version=__version__,
        limits=parts.base.limits,
        secrets=signing_secrets(settings.isolation),
        tracer=parts.base.tracer,
    )
