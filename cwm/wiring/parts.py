"""Builds everything that a gateway is made of, from the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.adapters.vllm.client import VllmEngine
from cwm.ports.identity import Identity
from cwm.ports.tracing import Tracer
from cwm.services.access.limits import Limits
from cwm.services.agents.agents import Agents
from cwm.services.audit.upkeep import AuditUpkeep
from cwm.services.catalogue import Services
from cwm.services.contents.contents import SharedContents
from cwm.services.context.upkeep import ContextUpkeep
from cwm.services.engines.directory import EngineDirectory
from cwm.services.health.census import Census
from cwm.services.health.inspect import Inspect
from cwm.services.replicas import Replicas
from cwm.services.results.token_drift import TokenDrift
from cwm.services.turns.pass_through import PassThrough
from cwm.services.upkeep.reconcile import Reconcile
from cwm.services.upkeep.watchdog import Watchdog
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.upstreams import Upstreams
from cwm.settings import Settings
from cwm.wiring.access import Access
from cwm.wiring.agent_side import AgentSide, build_agent_side
from cwm.wiring.engine_side import EngineSide, build_engine_side
from cwm.wiring.foundation import Foundation, build_foundation
from cwm.wiring.front import hide_secrets
from cwm.wiring.limits import set_limits
from cwm.wiring.reconfigure import Reconfigure, set_budgets, set_context, set_log_level, set_upstreams
from cwm.wiring.shared_store import SharedStore
from cwm.wiring.upkeep import Upkeep, build_upkeep


@dataclass(frozen=True, slots=True)
class Parts:
    """The gateway's parts by name. ``reconfigure``: callbacks for changed settings, awaited in order."""

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
    """Wire adapters into services. Opens no connection; entering ``close()`` closes all of them on exit."""
    base = build_foundation(settings)
    engine_side = build_engine_side(settings, base)
    agent_side = build_agent_side(settings, base, engine_side.engine)
    upkeep = build_upkeep(settings, base, engine_side)
    services = _services(settings, base, engine_side, agent_side, upkeep)
    base.meter.observe(
        Census(
            inspect=services.inspect,
            agents=agent_side.agents,
            database=base.database.load,
            contents=agent_side.contents.cache,
            clock=base.clock,
            refresh_seconds=settings.metrics.metrics_refresh_seconds,
        )
    )
    return Parts(
        database=base.database,
        registry=base.registry,
        audit=base.audit,
        audit_upkeep=base.audit_upkeep,
        engine=engine_side.engine,
        kv_tier=engine_side.kv_tier,
        directory=engine_side.directory,
        watchdog=upkeep.watchdog,
        meter=base.meter,
        access=base.access,
        services=services,
        replicas=base.replicas,
        reconcile=upkeep.reconcile,
        pass_through=engine_side.pass_through,
        agents=agent_side.agents,
        upstreams=agent_side.upstreams,
        answers=agent_side.answers,
        token_counter=agent_side.token_counter,
        token_drift=agent_side.token_drift,
        contents=agent_side.contents,
        context_upkeep=agent_side.context_upkeep,
        limits=base.limits,
        reconfigure=(
            hide_secrets,
            set_log_level,
            set_upstreams(agent_side.upstreams),
            set_budgets(agent_side.delivery, agent_side.answers),
            set_context(agent_side.contents.cache, agent_side.context.views),
            set_limits(base.limits, base.access.identity),
        ),
        shared=base.shared,
        tracer=base.tracer,
        close=partial(_closing, base, engine_side, agent_side),
    )


def _services(
    settings: Settings, base: Foundation, engine_side: EngineSide, agent_side: AgentSide, upkeep: Upkeep
) -> Services:
    inspect = Inspect(
        registry=base.registry,
        engine=engine_side.engine,
        kv_tier=engine_side.kv_tier,
        clock=base.clock,
        version=__version__,
        started=base.clock.monotonic(),
        cache_fault=upkeep.watchdog.fault,
        upstreams=agent_side.upstreams.health,
        reuse=engine_side.reuse,
        audit_fault=base.audit.fault,
        shared_store=base.shared.ping,
        check_seconds=settings.metrics.check_timeout_seconds,
    )
    return Services(
        open_session=engine_side.open_session,
        generate=engine_side.generate,
        freeze=engine_side.freeze,
        thaw=engine_side.thaw,
        clone=engine_side.clone,
        delete=engine_side.delete,
        end_session=engine_side.end_session,
        browse=engine_side.browse,
        inspect=inspect,
        shared_context=agent_side.context,
        results=agent_side.results,
        delivery=agent_side.delivery,
        by_reference=agent_side.by_reference,
        query_result=agent_side.query_result,
        journal=base.journal,
    )


def _closing(base: Foundation, engine_side: EngineSide, agent_side: AgentSide) -> AsyncExitStack:
    """The last callback runs first."""
    stack = AsyncExitStack()
    callbacks: tuple[Callable[[], Awaitable[None]], ...] = (
        base.tracer.aclose,
        base.database.dispose,
        base.audit.settle,
        base.shared.close,
        base.access.close,
        base.limits.settle,
        engine_side.kv_tier.aclose,
        engine_side.engine.aclose,
        agent_side.token_drift.aclose,
        agent_side.connector.aclose,
        agent_side.upstreams.aclose,
        agent_side.context_upkeep.settle,
        agent_side.agents.aclose,
        base.meter.aclose,
    )
    for callback in callbacks:
        stack.push_async_callback(callback)
    return stack
