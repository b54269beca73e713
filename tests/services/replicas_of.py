"""Gateways without a face: agents and upstreams over one store, as replicas share it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cwm.adapters.memory.agent_sessions import InProcessAgentSessions
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.upstream.connector import SdkConnector
from cwm.domain.access import EVERY
from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.domain.upstream import OfferKind, UpstreamSpec
from cwm.ports.agent_sessions import AgentSessions
from cwm.services.agents.agents import Agents
from cwm.services.upstreams.tool_watch import ToolWatch
from cwm.services.upstreams.upstreams import CallerOf, Upstreams

ANN, BOB = Principal("acme", "ann"), Principal("acme", "bob")
OPERATOR = Principal("acme", "ann", EVERY)
"""Ann, who runs the gateway."""
OPERATORS = Operators("acme")


@dataclass(slots=True)
class HandClock:
    """Moves when told to."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds


@dataclass(slots=True)
class Shared:
    """What replicas share."""

    clock: HandClock = field(default_factory=HandClock)
    changes: InProcessChanges = field(default_factory=InProcessChanges)
    store: AgentSessions = field(init=False)

    def __post_init__(self) -> None:
        self.store = InProcessAgentSessions(ttl_seconds=60, monotonic=self.clock.monotonic)


@dataclass(frozen=True, slots=True)
class Replica:
    agents: Agents
    upstreams: Upstreams
    meter: PrometheusMeter

    async def caller(
        self, agent_session: str | None, principal: Principal = ANN, authorization: str | None = None
    ) -> CallerOf:
        return CallerOf(await self.agents.get(principal, agent_session), authorization)

    async def call(
        self, caller: CallerOf, exposed: str, *, repeatable: bool = False, **arguments: Any
    ) -> str:
        offer = await self.upstreams.offer(caller, OfferKind.TOOLS, exposed)
        assert offer is not None, exposed
        asked = {"name": offer.own_name, "arguments": arguments}
        answer = await self.upstreams.request(
            caller, offer.upstream, "tools/call", asked, repeatable=repeatable
        )
        return str(answer["content"][0]["text"])


@asynccontextmanager
async def replica(
    shared: Shared,
    upstreams: Iterable[UpstreamSpec],
    *,
    limit: int = 10_000,
    watch: ToolWatch | None = None,
) -> AsyncIterator[Replica]:
    meter, connector = PrometheusMeter(), SdkConnector()
    agents = Agents(shared.store, shared.changes, shared.clock, ttl_seconds=60, limit=limit)
    fronted = Upstreams(connector, agents, shared.changes, meter, shared.clock, watch=watch)
    await fronted.configure(upstreams)
    try:
        yield Replica(agents, fronted, meter)
    finally:
        await agents.aclose()
        await fronted.aclose()
        await connector.aclose()
