"""The agent side: agent sessions, shared context, tool results and upstream servers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from cwm.adapters.local.query_engine import LocalQueryEngine
from cwm.adapters.local.secret import signing_secrets
from cwm.adapters.sql.upstream_tasks import SqlUpstreamTasks
from cwm.adapters.sql.upstream_tools import SqlUpstreamTools
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.adapters.upstream.connector import SdkConnector
from cwm.domain.cursor import Cursors
from cwm.ports.engine import Engine
from cwm.services.agents.agents import Agents
from cwm.services.contents.cache import ContentCache
from cwm.services.contents.contents import SharedContents
from cwm.services.context.requests import ContextLimits
from cwm.services.context.shared_context import SharedContext
from cwm.services.context.upkeep import ContextUpkeep
from cwm.services.context.views import ContextViews
from cwm.services.results.budget_ledger import Ledger
from cwm.services.results.delivery import Delivery
from cwm.services.results.query import QueryResult
from cwm.services.results.query_slots import QuerySlots
from cwm.services.results.references import ByReference
from cwm.services.results.results import Results
from cwm.services.results.savings import Savings
from cwm.services.results.token_drift import TokenDrift
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.tasks import UpstreamTasks
from cwm.services.upstreams.tool_desk import ToolDesk
from cwm.services.upstreams.tool_watch import ToolWatch
from cwm.services.upstreams.upstreams import Upstreams
from cwm.settings import Context, Settings
from cwm.wiring.foundation import Foundation

_PATTERNS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class AgentSide:
    agents: Agents
    contents: SharedContents
    context: SharedContext
    context_upkeep: ContextUpkeep
    connector: SdkConnector
    upstreams: Upstreams
    upstream_tasks: UpstreamTasks
    tool_desk: ToolDesk
    token_counter: BpeTokenCounter
    token_drift: TokenDrift
    results: Results
    delivery: Delivery
    by_reference: ByReference
    query_result: QueryResult
    answers: SharedAnswers


def build_agent_side(settings: Settings, base: Foundation, engine: Engine) -> AgentSide:
    """``engine`` counts tokens exactly; ``token_drift`` compares our own count with it."""
    clock, meter, shared, journal = base.clock, base.meter, base.shared, base.journal
    context_settings, result_settings = settings.context, settings.stored_results
    session_seconds = settings.shared.agent_session_ttl_seconds
    agents = Agents(
        shared.agent_sessions,
        shared.changes,
        clock,
        ttl_seconds=session_seconds,
        limit=settings.shared.agent_session_limit,
        foreign=partial(journal.foreign, what="agent_session"),
    )
    contents = SharedContents(
        store=shared.contents,
        cache=ContentCache(context_settings.memory_bytes(), context_settings.context_eviction),
        changes=shared.changes,
        audit=base.audit,
        meter=meter,
        clock=clock,
        compress_above=context_settings.context_compress_bytes,
        quota_bytes=context_settings.quota_bytes(),
    )
    context = SharedContext(
        index=shared.context,
        contents=contents,
        views=ContextViews(shared.context, bytes_for_keys(context_settings), contents.cache.reserve),
        changes=shared.changes,
        meter=meter,
        clock=clock,
        limits=ContextLimits(
            value_bytes=context_settings.context_value_kb * 1024,
            versions=context_settings.context_versions,
            snapshots=context_settings.context_snapshots,
            ttl_seconds=context_settings.context_ttl_seconds,
        ),
        quota_bytes=context_settings.quota_bytes(),
        tracer=base.tracer,
    )
    connector = SdkConnector(base.tracer, link_local=settings.security.allow_link_local)
    tools = SqlUpstreamTools(base.database)
    upstreams = Upstreams(
        connector=connector,
        agents=agents,
        changes=shared.changes,
        meter=meter,
        clock=clock,
        tracer=base.tracer,
        watch=ToolWatch(tools, base.audit, meter, clock, settings.isolation.tenant),
    )
    token_counter = BpeTokenCounter(settings.tokens.token_vocabulary)
    token_drift = TokenDrift(engine=engine, meter=meter, share=settings.tokens.token_drift_share)
    results = Results(
        records=shared.results,
        contents=contents,
        tokens=token_counter,
        cursors=Cursors(signing_secrets(settings.isolation)),
        clock=clock,
        quota_bytes=result_settings.quota_bytes(),
        cursor_ttl=timedelta(seconds=result_settings.cursor_ttl_seconds),
        journal=journal,
        whole_bytes=result_settings.whole_bytes(),
    )
    return AgentSide(
        agents=agents,
        contents=contents,
        context=context,
        context_upkeep=ContextUpkeep(
            context=context,
            sessions=shared.agent_sessions,
            changes=shared.changes,
            idle_seconds=session_seconds,
        ),
        connector=connector,
        upstreams=upstreams,
        upstream_tasks=UpstreamTasks(
            records=SqlUpstreamTasks(base.database),
            upstreams=upstreams,
            journal=journal,
            clock=clock,
            most=settings.tasks.upstream_tasks,
            ttl=timedelta(seconds=settings.tasks.upstream_task_seconds),
        ),
        tool_desk=ToolDesk(tools, base.audit, clock, settings.isolation.tenant),
        token_counter=token_counter,
        token_drift=token_drift,
        results=results,
        delivery=Delivery(
            results=results,
            counter=token_counter,
            drift=token_drift,
            ledger=Ledger(agents),
            savings=Savings(meter),
            budgets=settings.budgets,
        ),
        by_reference=ByReference(results=results, journal=journal),
        query_result=QueryResult(
            results=results,
            engine=LocalQueryEngine(),
            jmespath_slots=QuerySlots(result_settings.queries_at_once, result_settings.query_wait_seconds),
            pattern_slots=QuerySlots(_PATTERNS_AT_ONCE, result_settings.query_wait_seconds),
        ),
        answers=SharedAnswers(context=context, upstreams=upstreams, policies=settings.budgets.policies),
    )


def bytes_for_keys(context: Context) -> int:
    """At most half of the memory holds the list of keys; the rest holds their values."""
    return context.memory_bytes() // 2
