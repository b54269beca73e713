"""The agent side: agent sessions, shared context, tool results and upstream servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cwm.adapters.sql.upstream_tools import SqlUpstreamTools
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.adapters.upstream.connector import SdkConnector
from cwm.ports.engine import Engine
from cwm.services.agents.agents import Agents
from cwm.services.contents.contents import SharedContents
from cwm.services.context.shared_context import SharedContext
from cwm.services.context.upkeep import ContextUpkeep
from cwm.services.results.budget_ledger import Ledger
from cwm.services.results.delivery import Delivery
from cwm.services.results.query import QueryResult
from cwm.services.results.references import ByReference
from cwm.services.results.results import Results
from cwm.services.results.savings import Savings
from cwm.services.results.token_drift import TokenDrift
from cwm.services.upstreams.shared_answers import SharedAnswers
from cwm.services.upstreams.tool_watch import ToolWatch
from cwm.services.upstreams.upstreams import Upstreams
from cwm.settings import Settings
from cwm.wiring.foundation import Foundation
from cwm.wiring.shared_context import shared_contents, shared_context
from cwm.wiring.stored_results import query_result, stored_results


@dataclass(frozen=True, slots=True)
class AgentSide:
    agents: Agents
    contents: SharedContents
    context: SharedContext
    context_upkeep: ContextUpkeep
    connector: SdkConnector
    upstreams: Upstreams
    token_counter: BpeTokenCounter
    token_drift: TokenDrift
    results: Results
    delivery: Delivery
    by_reference: ByReference
    query_result: QueryResult
    answers: SharedAnswers


def build_agent_side(settings: Settings, base: Foundation, engine: Engine) -> AgentSide:
    """``engine`` counts tokens exactly; ``token_drift`` compares our own count with it."""
    clock, meter, shared = base.clock, base.meter, base.shared
    session_seconds = settings.shared.agent_session_ttl_seconds
    agents = Agents(
        shared.agent_sessions,
        shared.changes,
        clock,
        ttl_seconds=session_seconds,
        limit=settings.shared.agent_session_limit,
        foreign=partial(base.journal.foreign, what="agent_session"),
    )
    contents = shared_contents(settings, shared, base.audit, meter, clock)
    context = shared_context(settings, shared, contents, meter, clock, base.tracer)
    connector = SdkConnector(base.tracer, link_local=settings.security.allow_link_local)
    upstreams = Upstreams(
        connector=connector,
        agents=agents,
        changes=shared.changes,
        meter=meter,
        clock=clock,
        tracer=base.tracer,
        watch=ToolWatch(SqlUpstreamTools(base.database), base.audit, meter, clock, settings.isolation.tenant),
    )
    token_counter = BpeTokenCounter(settings.tokens.token_vocabulary)
    token_drift = TokenDrift(engine=engine, meter=meter, share=settings.tokens.token_drift_share)
    results = stored_results(settings, shared, contents, token_counter, base.journal)
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
        by_reference=ByReference(results=results, journal=base.journal),
        query_result=query_result(settings, results),
        answers=SharedAnswers(context=context, upstreams=upstreams, policies=settings.budgets.policies),
    )
