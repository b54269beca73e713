"""Builds everything that a gateway is made of, from the settings."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from cwm import __version__
from cwm.adapters.sql.marks import SqlMarks
from cwm.adapters.telemetry.logging import set_level
from cwm.services.access.usage import Usage
from cwm.services.audit.reading import ReadAudit
from cwm.services.audit.verify import VerifyAudit
from cwm.services.catalogue import Services
from cwm.services.health.census import Census
from cwm.services.health.examine import Examine
from cwm.services.health.inspect import Inspect
from cwm.services.health.live import Live
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.reading.compactions import Compactions
from cwm.services.turns.reading.compare import Compare
from cwm.services.turns.reading.history import History
from cwm.services.turns.reading.search import Search
from cwm.services.upstreams.offers import OffersOfUpstreams
from cwm.services.windows.extend import Extend
from cwm.services.windows.outlook import Outlook
from cwm.services.windows.rename import Rename
from cwm.services.windows.resume import Resume
from cwm.services.windows.share import Share
from cwm.settings import Settings
from cwm.wiring.access import build_keys
from cwm.wiring.agent_side import AgentSide, build_agent_side, bytes_for_keys
from cwm.wiring.doctor import build_doctor
from cwm.wiring.engine_side import EngineSide, build_engine_side
from cwm.wiring.foundation import Foundation, build_foundation
from cwm.wiring.front import hide_secrets
from cwm.wiring.limits import limit_rules
from cwm.wiring.upkeep import Upkeep, build_upkeep


@dataclass(frozen=True, slots=True)
class Parts:
    """The gateway's parts, by the side that they belong to."""

    base: Foundation
    engine_side: EngineSide
    agent_side: AgentSide
    upkeep: Upkeep
    services: Services

    async def reconfigure(self, settings: Settings) -> None:
        """Apply what of changed settings can change while the gateway runs. Counts, contents and sessions are kept."""
        agent_side, limits = self.agent_side, self.base.limits
        hide_secrets(settings)
        set_level(settings.logging.log_level)
        await agent_side.upstreams.configure(settings.upstreams)
        agent_side.delivery.budgets = settings.budgets
        await agent_side.answers.configure(settings.budgets.policies)
        agent_side.context.views.resize(bytes_for_keys(settings.context))
        agent_side.contents.cache.reconfigure(
            settings.context.memory_bytes(), settings.context.context_eviction
        )
        await self.engine_side.configure(settings)
        reconcile = self.upkeep.reconcile
        reconcile.autosave.policies = settings.autosave
        reconcile.autosave.retention = reconcile.retain.policy = replace(
            self.engine_side.policy, keep=settings.keep
        )
        limits.rules = limit_rules(settings, self.base.access.identity)

    def close(self) -> AsyncExitStack:
        """Closes all connections when it is left; the last callback runs first."""
        stack = AsyncExitStack()
        base, engine_side, agent_side = self.base, self.engine_side, self.agent_side
        for callback in (
            base.tracer.aclose,
            base.database.dispose,
            base.audit.settle,
            engine_side.turn_sums.settle,
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
            self.services.live.aclose,
        ):
            stack.push_async_callback(callback)
        return stack


def build_parts(settings: Settings) -> Parts:
    """Wire adapters into services. Opens no connection; entering ``close()`` closes all of them on exit."""
    base = build_foundation(settings)
    engine_side = build_engine_side(settings, base)
    agent_side = build_agent_side(settings, base, engine_side.engine)
    upkeep = build_upkeep(settings, base, engine_side)
    inspect = Inspect(
        registry=base.registry,
        engine=engine_side.engine,
        kv_tier=engine_side.kv_tier,
        clock=base.clock,
        version=__version__,
        started=base.clock.monotonic(),
        operators=base.operators,
        cache_fault=upkeep.watchdog.fault,
        upstreams=agent_side.upstreams.health,
        reuse=engine_side.reuse,
        audit_fault=base.audit.fault,
        shared_store=base.shared.ping,
        directory=engine_side.directory,
        check_seconds=settings.metrics.check_timeout_seconds,
    )
    history = History(base.registry, base.journal)
    services = Services(
        open_session=engine_side.open_session,
        generate=engine_side.generate,
        history=history,
        branches=Branches(
            base.registry, base.journal, base.clock, settings.session_visibility(), base.storage
        ),
        rename=Rename(base.registry, base.journal, base.clock),
        extend=Extend(base.registry, base.journal, base.clock),
        outlook=Outlook(base.registry, engine_side.delete),
        compare=Compare(history, engine_side.directory, engine_side.thaw.planner),
        compactions=Compactions(history),
        calling_conversation=engine_side.calling_conversation,
        search=Search(history),
        freeze=engine_side.freeze,
        thaw=engine_side.thaw,
        resume=Resume(base.registry, engine_side.thaw, engine_side.turns, base.journal),
        clone=engine_side.clone,
        share=Share(base.registry, base.journal),
        move=engine_side.move,
        survey=engine_side.survey,
        drain=engine_side.drain,
        upgrades=engine_side.upgrades,
        delete=engine_side.delete,
        end_session=engine_side.end_session,
        browse=engine_side.browse,
        inspect=inspect,
        live=Live(
            SqlMarks(base.database),
            base.registry,
            engine_side.directory,
            base.shared.changes,
            base.clock,
            base.operators,
        ),
        shared_context=agent_side.context,
        offers_of_upstreams=OffersOfUpstreams(agent_side.upstreams, agent_side.tool_desk, base.operators),
        upstream_tasks=agent_side.upstream_tasks,
        results=agent_side.results,
        delivery=agent_side.delivery,
        by_reference=agent_side.by_reference,
        query_result=agent_side.query_result,
        journal=base.journal,
        turn_sums=engine_side.turn_sums,
        examine=Examine(build_doctor(settings, base, engine_side), base.clock, base.operators),
        read_audit=ReadAudit(base.trail, VerifyAudit(base.trail, base.audit.keys)),
        keys=build_keys(settings, base.database, base.audit, base.clock),
        usage=Usage(base.limits, base.storage),
        refusals=base.access.refusals,
        operators=base.operators,
    )
    base.meter.observe(
        Census(
            inspect=inspect,
            agents=agent_side.agents,
            database=base.database.load,
            contents=agent_side.contents.cache,
            clock=base.clock,
            refresh_seconds=settings.metrics.metrics_refresh_seconds,
        )
    )
    return Parts(base, engine_side, agent_side, upkeep, services)
