"""The composition root: settings in, ASGI application out. Read top to bottom."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import structlog
import uvicorn
from fastapi import FastAPI

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.local import process
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.local.query_engine import LocalQueryEngine
from cwm.adapters.local.secret import load_secret
from cwm.adapters.sql import schema
from cwm.adapters.sql.audit import SqlAuditLog
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry import SqlRegistry
from cwm.adapters.sql.speeds import SqlSpeeds
from cwm.adapters.sql.traced import traced
from cwm.adapters.telemetry.event_loop import watch_event_loop
from cwm.adapters.telemetry.logging import set_level
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.telemetry.tracing import open_tracer
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.adapters.upstream.connector import SdkConnector
from cwm.adapters.vllm.client import VllmEngine
from cwm.adapters.vllm.turn_request import OpenAiWire
from cwm.domain.errors import CwmError
from cwm.ports.identity import Identity
from cwm.ports.tracing import Tracer
from cwm.services.agents import Agents
from cwm.services.audit_upkeep import AuditUpkeep
from cwm.services.audited import Journal
from cwm.services.browse import Browse
from cwm.services.catalogue import Services
from cwm.services.census import Census
from cwm.services.clone import Clone
from cwm.services.content_cache import ContentCache
from cwm.services.contents import SharedContents
from cwm.services.context_upkeep import ContextUpkeep
from cwm.services.delete import Delete
from cwm.services.delivery import Delivery
from cwm.services.end_session import EndSession
from cwm.services.engine_directory import EngineDirectory
from cwm.services.freeze import Freeze
from cwm.services.generate import Generate
from cwm.services.grow import Grow
from cwm.services.inspect import Inspect
from cwm.services.ledger import Ledger
from cwm.services.limits import Limits
from cwm.services.open_session import OpenSession
from cwm.services.pass_through import PassThrough
from cwm.services.patrol import Patrol
from cwm.services.pin_audit import PinAudit
from cwm.services.planner import Planner
from cwm.services.quarantine import Quarantine
from cwm.services.query_result import QueryResult
from cwm.services.reconcile import Reconcile
from cwm.services.references import ByReference
from cwm.services.release import Release
from cwm.services.replicas import Replicas
from cwm.services.retention import Retain, RetentionPolicy
from cwm.services.savings import Savings
from cwm.services.scopes import Scopes
from cwm.services.shared_answers import SharedAnswers
from cwm.services.store import Store
from cwm.services.thaw import Thaw
from cwm.services.token_drift import TokenDrift
from cwm.services.turns import Turns
from cwm.services.upstreams import Upstreams
from cwm.services.verify import Verify
from cwm.services.watchdog import Watchdog
from cwm.settings import Settings
from cwm.settings.watch import Outcome, watch
from cwm.transport.http.body_limit import BodyLimit
from cwm.transport.http.bounded import bounded
from cwm.transport.http.correlation import Correlated
from cwm.transport.http.health import routes as health_routes
from cwm.transport.http.measured import Measured
from cwm.transport.http.origin import OriginLayer
from cwm.transport.http.shortcut import Shortcut
from cwm.transport.http.upkeep import routes as upkeep_routes
from cwm.transport.mcp.agent import Agency
from cwm.transport.mcp.face import McpFace
from cwm.transport.mcp.server import PATH as MCP_PATH
from cwm.transport.mcp.server import build_mcp, mcp_app
from cwm.transport.mcp.stdio import serve_stdio
from cwm.transport.openai.routes import routes as openai_routes
from cwm.wiring.access import Access, build_access, guard, refuse_open_socket
from cwm.wiring.audit import audit_log
from cwm.wiring.front import hide_secrets, stand_before
from cwm.wiring.limits import build_limits, set_limits
from cwm.wiring.shared_context import shared_contents, shared_context
from cwm.wiring.shared_store import SharedStore, shared_store
from cwm.wiring.stored_results import stored_results

# Shorter than any vLLM takes to restart, so that a changed engine is always noticed.
_WATCH_SECONDS: Final = 1.0
_KEEP_ALIVE_SECONDS: Final = 75
_CANCEL_AGAIN_SECONDS: Final = 1.0

Reconfigure: TypeAlias = Callable[[Settings], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the gateway is made of, by name. ``reconfigure`` hears of new settings, one after the other."""

    database: Database
    registry: SqlRegistry
    audit: SqlAuditLog
    audit_upkeep: AuditUpkeep
    engine: VllmEngine
    kv_tier: LmcacheTier
    directory: EngineDirectory
    watchdog: Watchdog
    meter: PrometheusMeter
    access: Access
    services: Services
    replicas: Replicas
    reconcile: Reconcile
    pass_through: PassThrough
    agents: Agents
    upstreams: Upstreams
    answers: SharedAnswers
    token_counter: BpeTokenCounter
    token_drift: TokenDrift
    contents: SharedContents
    context_upkeep: ContextUpkeep
    limits: Limits
    reconfigure: tuple[Reconfigure, ...]
    shared: SharedStore
    tracer: Tracer
    close: Callable[[], AsyncExitStack]

    @property
    def identity(self) -> Identity:
        return self.access.identity


def build_parts(settings: Settings) -> Parts:
    """Wire adapters into services. Opens nothing yet; ``close`` gives what must be closed."""
    clock, meter, tracer = SystemClock(), PrometheusMeter(), open_tracer(settings.tracing)
    database = traced(open_database(settings.database.url()), tracer)
    replicas = Replicas(SqlLeases(database), clock, process.holder(), process.has_ended)
    registry, (audit, audit_upkeep) = SqlRegistry(database, replicas.me), audit_log(settings, database, clock)
    engine, kv_tier = VllmEngine(settings.engine, tracer), LmcacheTier(settings.engine, tracer)
    directory = EngineDirectory(
        engine,
        kv_tier,
        secret=load_secret(settings.isolation),
        weights_digest=settings.engine.weights_digest,
    )
    shared = shared_store(settings, database, clock, tracer)
    access = build_access(settings, database, audit, clock, meter)
    journal = Journal(audit, clock, meter, shared.changes, tracer)
    turns = Turns(registry, audit, clock)
    scopes = Scopes(registry, clock)
    verify = Verify(engine, settings.verification.canary_tokens, settings.verification.canary_tolerance)
    store = Store(engine, kv_tier, directory, clock, settings.engine.store_timeout_seconds)
    limits = build_limits(settings, shared.client, access.identity, audit, meter, clock)
    generate = Generate(registry, engine, directory, turns, Grow(engine), journal, meter, clock, limits)
    release = Release(registry, kv_tier, replicas)
    quota_bytes = settings.retention.quota_bytes()
    freeze = Freeze(
        registry, kv_tier, directory, store, turns, journal, clock, verify, release, replicas, quota_bytes
    )
    quarantine = Quarantine(registry, engine, directory, scopes, verify, journal, release, freeze.store_again)
    delete = Delete(registry, kv_tier, journal, clock, release, replicas)
    end_session = EndSession(registry, kv_tier, directory, turns, journal, clock, release)
    reconcile = Reconcile(
        registry,
        kv_tier,
        replicas,
        freeze,
        quarantine,
        release,
        PinAudit(registry, kv_tier, release, replicas),
        Patrol(registry, kv_tier, directory, freeze, clock),
        Retain(registry, freeze, delete, end_session, clock, _policy(settings)),
        journal,
        settings.retention.patrol_windows,
    )
    watchdog = Watchdog(engine, kv_tier, directory, meter, clock, reconcile.lost)
    planner = Planner(engine, kv_tier, SqlSpeeds(database), meter, clock, settings.thaw.thaw_plan)
    agents = Agents(
        shared.agent_sessions,
        shared.changes,
        clock,
        ttl_seconds=settings.shared.agent_session_ttl_seconds,
        limit=settings.shared.agent_session_limit,
        foreign=partial(journal.foreign, what="agent_session"),
    )
    contents = shared_contents(settings, shared, audit, meter, clock)
    context = shared_context(settings, shared, contents, meter, clock, tracer)
    context_upkeep = ContextUpkeep(
        context, shared.agent_sessions, shared.changes, settings.shared.agent_session_ttl_seconds
    )
    connector = SdkConnector(tracer, link_local=settings.security.allow_link_local)
    upstreams = Upstreams(connector, agents, shared.changes, meter, clock, tracer)
    token_counter = BpeTokenCounter(settings.tokens.token_vocabulary)
    token_drift = TokenDrift(engine, meter, settings.tokens.token_drift_share)
    results = stored_results(settings, shared, contents, token_counter, journal)
    delivery = Delivery(results, token_counter, token_drift, Ledger(agents), Savings(meter), settings.budgets)
    answers = SharedAnswers(context, upstreams, settings.budgets.policies)
    services = Services(
        open_session=OpenSession(registry, directory, journal, clock, scopes, settings.isolation.cache_scope),
        generate=generate,
        freeze=freeze,
        thaw=Thaw(
            registry,
            engine,
            kv_tier,
            directory,
            generate,
            verify,
            quarantine,
            planner,
            replicas,
            journal,
            meter,
            clock,
        ),
        clone=Clone(registry, kv_tier, journal, clock, release, replicas, quota_bytes),
        delete=delete,
        end_session=end_session,
        browse=Browse(registry, kv_tier, directory),
        inspect=Inspect(
            registry,
            engine,
            kv_tier,
            clock,
            __version__,
            clock.monotonic(),
            watchdog.fault,
            upstreams.health,
            shared.ping,
            settings.metrics.check_timeout_seconds,
        ),
        shared_context=context,
        results=results,
        delivery=delivery,
        by_reference=ByReference(results, journal),
        query_result=QueryResult(results, LocalQueryEngine()),
        journal=journal,
    )
    meter.observe(
        Census(services.inspect, agents, database.load, clock, settings.metrics.metrics_refresh_seconds)
    )
    pass_through = PassThrough(
        engine, OpenAiWire(), registry, directory, services.open_session, scopes, turns, journal, limits
    )

    close = partial(
        _closing,
        tracer.aclose,
        database.dispose,
        audit.settle,
        shared.close,
        access.close,
        limits.settle,
        kv_tier.aclose,
        engine.aclose,
        token_drift.aclose,
        connector.aclose,
        upstreams.aclose,
        context_upkeep.settle,
        agents.aclose,
        meter.aclose,
    )
    return Parts(
        database,
        registry,
        audit,
        audit_upkeep,
        engine,
        kv_tier,
        directory,
        watchdog,
        meter,
        access,
        services,
        replicas,
        reconcile,
        pass_through,
        agents,
        upstreams,
        answers,
        token_counter,
        token_drift,
        contents,
        context_upkeep,
        limits,
        (
            hide_secrets,
            _set_log_level,
            _set_upstreams(upstreams),
            _set_budgets(delivery, answers),
            _set_context(contents.cache),
            set_limits(limits),
        ),
        shared,
        tracer,
        close,
    )


def _closing(*callbacks: Callable[[], Awaitable[None]]) -> AsyncExitStack:
    """Calls the last of them first."""
    stack = AsyncExitStack()
    for callback in callbacks:
        stack.push_async_callback(callback)
    return stack


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Parts]:
    """The parts without a face, for work beside a gateway or without one."""
    parts = build_parts(settings)
    async with parts.close():
        await _require_schema(settings, parts)
        yield parts


def create_app(settings: Settings) -> FastAPI:
    """The gateway as an ASGI application; its lifespan checks the schema and opens the pools."""
    refuse_open_socket(settings)
    return assemble(settings, build_parts(settings))


def assemble(settings: Settings, parts: Parts) -> FastAPI:
    """Put the faces before the parts."""
    face = _face(parts, parts.identity)
    mcp = mcp_app(face)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with _kept_up(settings, parts), mcp.lifespan(mcp):
            _settle_garbage_collector()
            yield

    app = FastAPI(
        title="CWM",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # Its spans, metrics and logs would be second ones.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.parts, app.state.face, app.state.end_streams = parts, face, face.end_streams
    app.add_middleware(Shortcut, path=MCP_PATH, to=mcp)
    app.add_middleware(BodyLimit, max_bytes=settings.http.max_body_bytes)
    app.router.routes.extend(health_routes(parts.services.inspect, parts.meter))
    app.router.routes.extend(upkeep_routes(parts.reconcile))
    app.router.routes.extend(openai_routes(parts.pass_through, parts.identity))
    guard(app, settings, parts.access)
    app.mount("/", mcp)
    stand_before(app, settings, parts.audit, SystemClock())
    app.add_middleware(OriginLayer, trusted=settings.http.proxies())
    app.add_middleware(Measured, meter=parts.meter, paths=_paths(app))
    app.add_middleware(Correlated, tracer=parts.tracer, messages_at=MCP_PATH)
    return app


def _paths(app: FastAPI) -> frozenset[str]:
    """Of every route that has no parameter, and of MCP."""
    own = (getattr(route, "path", "") for route in app.router.routes)
    return frozenset(path for path in own if path and "{" not in path) | {MCP_PATH}


async def run_stdio(settings: Settings) -> None:
    """Serve MCP on standard input and output until the client closes them, or until cancelled."""
    parts = build_parts(settings)
    async with _kept_up(settings, parts):
        _settle_garbage_collector()
        # Whoever started this process is its only client.
        await serve_stdio(_face(parts, LocalIdentity(settings.isolation.tenant)))


async def run(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then let running streams finish. ``ready`` gets the URL."""
    await GatewayServer(settings, create_app(settings), ready or (lambda _url: None)).serve()


class DrainingServer(uvicorn.Server):
    """Stops without waiting for clients that only listen: they are let go, and come back elsewhere."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


class GatewayServer(DrainingServer):
    """Serves ``app`` on ``settings.http`` and calls ``ready`` with its URL once it answers."""

    def __init__(self, settings: Settings, app: FastAPI, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.http.host,
                port=settings.http.port,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                # Whom to believe about where a request is from is a setting of ours.
                proxy_headers=False,
                # Longer than clients keep idle connections: a request that meets the close would fail.
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=round(settings.http.drain_seconds),
                http=bounded(
                    settings.limits.max_header_bytes,
                    settings.limits.header_timeout_seconds,
                    settings.limits.body_timeout_seconds,
                ),
            ),
            app.state.end_streams,
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{host}:{port}")


@asynccontextmanager
async def _kept_up(settings: Settings, parts: Parts) -> AsyncIterator[None]:
    """Open what must be open and look after it, whichever way clients come in; then let running work finish."""
    await hide_secrets(settings)
    async with parts.close():
        await _require_schema(settings, parts)
        await parts.replicas.beat()
        await parts.upstreams.configure(settings.upstreams)
        upkeep = [
            asyncio.create_task(parts.directory.watch(_WATCH_SECONDS)),
            asyncio.create_task(parts.reconcile.run(settings.retention.reconcile_seconds)),
            asyncio.create_task(parts.shared.read()),
            asyncio.create_task(parts.agents.sweep()),
            asyncio.create_task(parts.context_upkeep.run()),
            asyncio.create_task(parts.limits.running.keep()),
            asyncio.create_task(parts.services.results.sweep()),
            asyncio.create_task(parts.watchdog.watch(settings.verification.watchdog_seconds)),
            asyncio.create_task(parts.audit_upkeep.run(settings.audit.audit_checkpoint_seconds)),
            asyncio.create_task(watch_event_loop(parts.meter.event_loop_lag)),
            asyncio.create_task(_reload(settings, parts)),
        ]
        try:
            yield
        finally:
            await _stop(upkeep)
            await _drain(settings, parts)
            with contextlib.suppress(CwmError):
                await parts.audit_upkeep.checkpoint()
            with contextlib.suppress(CwmError):
                await parts.replicas.leave()


def _face(parts: Parts, identity: Identity) -> McpFace:
    agency = Agency(identity, parts.agents, parts.access.refusals)
    return build_mcp(
        parts.services,
        agency,
        parts.upstreams,
        parts.answers,
        parts.shared.changes,
        parts.meter,
        version=__version__,
        limits=parts.limits,
        tracer=parts.tracer,
    )


async def _reload(settings: Settings, parts: Parts) -> None:
    """Hand on what changes in the file that the settings were read from."""

    async def apply(new: Settings) -> None:
        for reconfigure in parts.reconfigure:
            await reconfigure(new)

    def told(outcome: Outcome) -> None:
        parts.meter.event(f"config_reload_{outcome}")

    if settings.reading is not None:
        config, environ = settings.reading.config, settings.reading.environ
        await watch(settings, apply, environ=environ, config=config, told=told)


async def _set_log_level(settings: Settings) -> None:
    set_level(settings.logging.log_level)


def _set_upstreams(upstreams: Upstreams) -> Reconfigure:
    async def configure(settings: Settings) -> None:
        await upstreams.configure(settings.upstreams)

    return configure


def _set_context(cache: ContentCache) -> Reconfigure:
    async def configure(settings: Settings) -> None:
        cache.reconfigure(settings.context.memory_bytes(), settings.context.context_eviction)

    return configure


def _set_budgets(delivery: Delivery, answers: SharedAnswers) -> Reconfigure:
    async def configure(settings: Settings) -> None:
        delivery.configure(settings.budgets)
        answers.policies = settings.budgets.policies

    return configure


async def _require_schema(settings: Settings, parts: Parts) -> None:
    """An empty SQLite file is ours to fill; any other unknown schema is refused."""
    if settings.database.database_url is None and await schema.is_empty(parts.database):
        await schema.upgrade(settings.database.url())
    await schema.require_current(parts.database)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        # The client of Redis can lose a cancellation that comes as it finishes writing.
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled() and (failed := task.exception()) is not None:
            raise failed


def _policy(settings: Settings) -> RetentionPolicy:
    retention = settings.retention
    return RetentionPolicy(
        retention.session_ttl_seconds, retention.session_kept_seconds, retention.auto_freeze
    )


async def _drain(settings: Settings, parts: Parts) -> None:
    await parts.pass_through.drain(settings.http.drain_seconds)
    try:
        async with asyncio.timeout(settings.http.drain_seconds):
            await parts.services.generate.settle()
            await parts.services.freeze.settle()
            await parts.watchdog.settle()
            await parts.services.thaw.planner.settle()
    except TimeoutError:
        structlog.get_logger("cwm").warning("drain_incomplete", seconds=settings.http.drain_seconds)


def _settle_garbage_collector() -> None:
    """What exists after start-up lives as long as the process: collecting it makes the long tail of latency."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
