"""The pass-through on a real loopback socket, over a real registry, in front of whatever vLLM is told."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.sql import schema
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.turns.conversations import SqlConversations
from cwm.adapters.sql.turns.responses import SqlResponses
from cwm.adapters.sql.turns.stored_bytes import SqlStoredBytes
from cwm.adapters.vllm.client import VllmEngine
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.adapters.vllm.turns.wire import VllmWire
from cwm.domain.access import EVERY
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.conversation import Capture, CapturePolicies
from cwm.domain.engine import CacheScope
from cwm.domain.errors import SecurityError, WindowNotFoundError
from cwm.domain.json_bounds import MOST_VALUES
from cwm.domain.limits import LimitRules
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.response import ContextLimit
from cwm.domain.session import Session
from cwm.services.access.body_room import BodyRoom
from cwm.services.access.limits import CountStore, Limits
from cwm.services.access.storage import Storage
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from cwm.services.kv.reuse import Reuse
from cwm.services.replicas import Replicas
from cwm.services.responses.conversations import StoredConversations
from cwm.services.responses.responses import Responses
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import SaltScopes
from cwm.services.turns.finding.continuation import Continuation
from cwm.services.turns.recording.grow import Grow
from cwm.services.turns.recording.turns import Turns
from cwm.services.turns.sending.pass_through import PassThrough
from cwm.settings import ABSENT, Engine
from cwm.transport.http.body_limit import BodyLimit
from cwm.transport.http.envelope import headers_of
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.transport.llm.routes import routes
from cwm.wiring.turns import TurnParts, build_pass_through
from tests.eventually import eventually

TENANT = "acme"
MAX_BODY_BYTES = 512 * 1024


class HeaderIdentity:
    """Callers who say who they are; only right in a test."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        if headers.get("x-tenant") == "nobody":
            raise SecurityError("Nobody may enter.")
        return Principal(headers.get("x-tenant", TENANT), headers.get("x-subject", "agent"), EVERY)


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Authenticates requests as the layer in front of every route does; who is refused is told by the route."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(SecurityError):
            scope[PRINCIPAL] = await HeaderIdentity().authenticate(headers_of(scope))
        await self.app(scope, receive, send)


class TallyMeter:
    """Counts in plain sight."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.counts[f"{name} error"] += 1
            raise
        self.counts[f"{name} success"] += 1

    def tokens(self, source: str, count: int) -> None:
        self.counts[f"tokens {source}"] += count

    def result_tokens(self, *, had: int, delivered: int, read_later: int) -> None:
        self.counts.update({"had": had, "delivered": delivered, "read later": read_later})

    def drift(self, counted: int, served: int) -> None:
        self.counts.update(counted=counted, served=served)

    def event(self, name: str) -> None:
        self.counts[f"event {name}"] += 1

    def watched(self, outcome: str) -> None:
        self.counts[f"watched {outcome}"] += 1

    def instances(self, healthy: Mapping[str, bool]) -> None:
        self.counts.update(f"healthy {name}" for name, is_healthy in healthy.items() if is_healthy)

    def thaw_phase(self, phase: str, elapsed_ms: float) -> None:
        self.counts[f"phase {phase}"] += 1

    def verified(self, outcome: str) -> None:
        self.counts[f"verified {outcome}"] += 1


@dataclass(frozen=True, slots=True)
class Gateway:
    url: str
    database: Database
    registry: SqlRegistry
    audit: SqlAuditLog
    turns: Turns
    pass_through: PassThrough
    directory: EngineDirectory
    meter: TallyMeter
    client: httpx2.AsyncClient

    async def tokens(self, session_id: str, tenant: str = TENANT) -> TokenIds:
        return await self.registry.session_tokens(tenant, session_id)

    async def turns_ended(self, session_id: str, tenant: str = TENANT) -> None:
        """Wait until no turn of the session runs."""
        await eventually(lambda: not self.turns.in_flight(tenant, session_id))


async def _without_windows(
    _: Principal, window_name: str, _session_id: str | None, _visibility: str | None
) -> Session:
    raise WindowNotFoundError("This gateway has no windows.", window_name=window_name)


@asynccontextmanager
async def gateway(
    engine_settings: Engine,
    folder: Path,
    cache_scope: CacheScope = CacheScope.TENANT,
    rules: LimitRules = LimitRules(),  # noqa: B008
    capture: CapturePolicies = CapturePolicies(Capture.OFF),  # noqa: B008
    others: Mapping[str, Engine] = MappingProxyType({}),
    bodies: BodyRoom | None = None,
    max_values: int = MOST_VALUES,
    context_limit: ContextLimit = ContextLimit(),  # noqa: B008
    database_url: str = "",
) -> AsyncIterator[Gateway]:
    """``others``: engines by name, besides one that is named ``first`` then. Without a ``database_url`` the database is in the folder."""
    database_url = database_url or f"sqlite:///{folder / 'cwm.db'}"
    await schema.upgrade(database_url)
    async with AsyncExitStack() as stack:
        database = open_database(database_url)
        stack.push_async_callback(database.dispose)
        registry, audit, clock = (
            SqlRegistry(database),
            SqlAuditLog(database, ChainKeys([b"a secret"])),
            SystemClock(),
        )
        engine: VllmEngine | VllmFleet = VllmEngine(engine_settings)
        if others:
            each = {"first": engine_settings, **others}
            engine = VllmFleet({name: VllmEngine(one) for name, one in each.items()})
        kv_tier = LmcacheTier(engine_settings)
        stack.push_async_callback(engine.aclose)
        stack.push_async_callback(kv_tier.aclose)
        directory = EngineDirectory(engine, kv_tier, secret=b"a test's secret", weights_digest="")
        meter = TallyMeter()
        journal = Journal(audit, clock, meter, InProcessChanges())
        scopes = SaltScopes(registry, clock)
        counts = LimitsRequestCounts(InProcessStorage)
        limits = Limits(
            rules,
            counts,
            InProcessRunningRequests(counts),
            CountStore(False, meter, clock),
            audit,
            meter,
            clock,
            bodies or BodyRoom(),
        )
        storage = Storage(SqlStoredBytes(database), limits, clock)
        turns = Turns(registry, audit, clock, storage=storage)
        responses = Responses(
            SqlResponses(database),
            StoredConversations(
                SqlConversations(database),
                clock,
                Replicas(SqlLeases(database), uuid4().hex, lambda _: None),
                journal,
                lambda tenant: turns.keep.of(tenant).messages,
                context_limit,
                storage,
            ),
            clock,
            journal,
            context_limit,
        )
        pass_through = build_pass_through(
            TurnParts(
                engine=engine,
                wire=VllmWire(),
                registry=registry,
                directory=directory,
                place=Place(registry, directory, clock),
                open_session=OpenSession(registry, directory, journal, clock, scopes, cache_scope),
                continuation=Continuation(registry, _without_windows),
                grow=Grow(engine),
                turns=turns,
                journal=journal,
                limits=limits,
                reuse=Reuse(meter),
                responses=responses,
                clock=clock,
                capture=capture,
            )
        )
        app: ASGIApp = Starlette(routes=routes(pass_through, HeaderIdentity()))
        app = Authenticated(BodyLimit(app, limits, MAX_BODY_BYTES, max_values))
        url = await stack.enter_async_context(serving(app))
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False)
        )
        yield Gateway(url, database, registry, audit, turns, pass_through, directory, meter, client)
        await pass_through.drain(60)


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of ``app`` on a socket that listens before anyone can ask."""
    # asyncio turns Nagle's algorithm off only where the protocol is named.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="critical", lifespan="off", server_header=False, timeout_graceful_shutdown=5
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def settings_for(vllm_url: str, lmcache_url: str = ABSENT, coordinator_url: str = ABSENT) -> Engine:
    return Engine(
        vllm_url=vllm_url,
        lmcache_url=lmcache_url,
        coordinator_url=coordinator_url,
        connect_timeout_seconds=2.0,
        request_timeout_seconds=60.0,
    )
