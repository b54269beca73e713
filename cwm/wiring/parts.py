"""Adapters wired into services: everything that a gateway is made of. Read top to bottom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.local import process
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.query_engine import LocalQueryEngine
from cwm.adapters.local.secret import load_secret
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.speeds import SqlSpeeds
from cwm.adapters.sql.traced import traced
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.telemetry.tracing import open_tracer
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.adapters.upstream.connector import SdkConnector
from cwm.adapters.vllm.client import VllmEngine
from cwm.adapters.vllm.turn_request import OpenAiWire
from cwm.ports.identity import Identity
from cwm.ports.tracing import Tracer
from cwm.services.access.limits import Limits
from cwm.services.agents.agents import Agents
from cwm.services.audit.journal import Journal
from cwm.services.audit.upkeep import AuditUpkeep
from cwm.services.catalogue import Services
from cwm.services.contents.contents import SharedContents
from cwm.services.context.upkeep import ContextUpkeep
from cwm.services.engines.directory import EngineDirectory
from cwm.services.health.census import Census
from cwm.services.health.inspect import Inspect
from cwm.services.kv.origins import Origins
from cwm.services.kv.planner import Planner
from cwm.services.kv.release import Release
from cwm.services.kv.store import Store
from cwm.services.kv.verify import Verify
from cwm.services.replicas import Replicas
from cwm.services.results.budget_ledger import Ledger
from cwm.services.results.delivery import Delivery
from cwm.services.results.query import QueryResult
from cwm.services.results.references import ByReference
from cwm.services.results.savings import Savings
from cwm.services.results.token_drift import TokenDrift
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import Scopes
from cwm.services.turns.generate import Generate
from cwm.services.turns.grow import Grow
from cwm.services.turns.pass_through import PassThrough
from cwm.services.turns.turns import Turns
from cwm.services.upkeep.patrol import Patrol
from cwm.services.upkeep.pin_audit import PinAudit
from cwm.services.upkeep.reconcile import Reconcile
from cwm.services.upkeep.retention import Retain, RetentionPolicy
from cwm.services.upkeep.watchdog import Watchdog
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.upstreams import Upstreams
from cwm.services.windows.browse import Browse
from cwm.services.windows.clone import Clone
from cwm.services.windows.delete import Delete
from cwm.services.windows.freeze import Freeze
from cwm.services.windows.quarantine import Quarantine
from cwm.services.windows.thaw import Thaw
from cwm.settings import Settings
from cwm.wiring.access import Access, build_access
from cwm.wiring.audit import audit_log
from cwm.wiring.front import hide_secrets
from cwm.wiring.limits import build_limits, set_limits
from cwm.wiring.reconfigure import Reconfigure, set_budgets, set_context, set_log_level, set_upstreams
from cwm.wiring.shared_context import shared_contents, shared_context
from cwm.wiring.shared_store import SharedStore, shared_store
from cwm.wiring.stored_results import stored_results


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
    replicas = Replicas(SqlLeases(database), process.holder(), process.has_ended)
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
    policy = _policy(settings)
    turns = Turns(registry, audit, clock, policy.touch_after)
    scopes = Scopes(registry, clock)
    verify = Verify(engine, settings.verification.canary_tokens, settings.verification.canary_tolerance)
    store = Store(engine, kv_tier, directory, clock, settings.engine.store_timeout_seconds)
    limits = build_limits(settings, shared.counting, access.identity, audit, meter, clock)
    generate = Generate(registry, engine, directory, turns, Grow(engine), journal, meter, limits)
    release = Release(registry, kv_tier, replicas)
    quota_bytes = settings.retention.quota_bytes()
    freeze = Freeze(
        registry, kv_tier, directory, store, turns, journal, clock, verify, release, replicas, quota_bytes
    )
    quarantine = Quarantine(registry, engine, directory, scopes, verify, journal, release, freeze.store_again)
    delete = Delete(registry, kv_tier, journal, clock, release, replicas)
    end_session = EndSession(registry, kv_tier, directory, turns.in_flight, journal, clock, release)
    reconcile = Reconcile(
        registry,
        kv_tier,
        replicas,
        freeze,
        quarantine,
        release,
        PinAudit(registry, kv_tier, release, replicas),
        Patrol(registry, kv_tier, directory, freeze, clock),
        Retain(registry, freeze, delete, end_session, turns, clock, policy),
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
            Origins(engine),
            replicas,
            journal,
            meter,
            clock,
            end_session,
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
        engine,
        OpenAiWire(),
        registry,
        directory,
        services.open_session,
        scopes,
        turns,
        journal,
        limits,
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
            set_log_level,
            set_upstreams(upstreams),
            set_budgets(delivery, answers),
            set_context(contents.cache, context.views),
            set_limits(limits, access.identity),
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


def _policy(settings: Settings) -> RetentionPolicy:
    retention = settings.retention
    return RetentionPolicy(
        retention.session_ttl_seconds, retention.session_kept_seconds, retention.auto_freeze
    )
