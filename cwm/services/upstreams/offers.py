"""What upstream servers offer, and which of their tools wait to be accepted, for whoever runs the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.domain.upstream import OfferKind
from cwm.domain.upstream_tools import SeenTool
from cwm.services.upstreams.tool_desk import ToolDesk
from cwm.services.upstreams.upstreams import UpstreamHealth, Upstreams


@dataclass(frozen=True, slots=True)
class UpstreamOffers:
    """An upstream as this gateway has it, and the tools that any gateway on the database saw it offer last.

    ``counts``: how many things of each kind it offers, empty if that depends on the caller. ``is_pinned``: tools that changed
    are hidden until they are accepted.
    """

    health: UpstreamHealth
    counts: Mapping[OfferKind, int]
    tools: Sequence[SeenTool]
    is_pinned: bool

    @property
    def changed(self) -> Sequence[SeenTool]:
        return [each for each in self.tools if each.accepted_at is None]


@dataclass(frozen=True, slots=True)
class OffersOfUpstreams:
    """For who runs the gateway: all tenants have the same upstreams."""

    upstreams: Upstreams
    desk: ToolDesk
    operators: Operators

    async def __call__(self, principal: Principal) -> list[UpstreamOffers]:
        """Every configured upstream, by name. CWM-9002 for who does not run the gateway; CWM-4002."""
        self.operators.require(principal)
        tools: dict[str, list[SeenTool]] = {}
        for each in await self.desk.listed():
            tools.setdefault(each.upstream, []).append(each)
        links = self.upstreams.roster.links
        return [
            UpstreamOffers(
                health,
                {}
                if health.tools is None
                else {kind: len(links[health.name].catalogue.of(kind)) for kind in OfferKind},
                tools.get(health.name, []),
                links[health.name].spec.pin_tools,
            )
            for health in sorted(self.upstreams.health(), key=lambda each: each.name)
        ]

    async def accept(self, principal: Principal, upstream: str, tools: Sequence[str]) -> list[SeenTool]:
        """Accept what changed of these tools. CWM-9002 for who does not run the gateway; CWM-1003, 4001."""
        self.operators.require(principal)
        return await self.desk.accept(upstream, tools, principal.subject)
