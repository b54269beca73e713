"""How many prompt tokens of each tenant needed no computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cwm.domain.per_tenant import PerTenant
from cwm.domain.turn_sums import TurnSum, sum_of_turn
from cwm.ports.meter import Meter
from cwm.services.kv.turn_sums import TurnSums


@dataclass(slots=True)
class ReusedTokens:
    """Totals of one tenant in this process: prompt tokens, those that were ``cached``, and both of thaws alone."""

    prompt: int = 0
    cached: int = 0
    thawed: int = 0
    restored: int = 0

    @property
    def share(self) -> float:
        return share_of(self.cached, self.prompt)

    @property
    def restored_share(self) -> float:
        return share_of(self.restored, self.thawed)


@dataclass(slots=True)
class Reuse:
    """Counts prompt tokens: for the metrics by source, and by tenant for the tenant's own statistics, also by hour."""

    meter: Meter
    sums: TurnSums | None = None
    _tenants: PerTenant[ReusedTokens] = field(default_factory=lambda: PerTenant(ReusedTokens), init=False)

    def of(self, tenant: str) -> ReusedTokens:
        return self._tenants.of(tenant)

    def turn(self, tenant: str, prompt: int, cached: int, first_token_ms: int | None = None) -> None:
        """Count a turn."""
        if self.sums is not None:
            self.sums.add(tenant, sum_of_turn(prompt, cached, first_token_ms))
        self._count(tenant, {"cached": cached}, prompt, cached)

    def thaw(self, tenant: str, by_tier: Mapping[str, int], restored: int, computed: int) -> None:
        """Count the request that restored a window."""
        if self.sums is not None:
            self.sums.add(tenant, TurnSum(prompt=restored + computed, cached=restored))
        tokens = self._count(tenant, by_tier, restored + computed, restored)
        tokens.thawed += restored + computed
        tokens.restored += restored

    def _count(self, tenant: str, by_source: Mapping[str, int], prompt: int, cached: int) -> ReusedTokens:
        for source, count in by_source.items():
            self.meter.tokens(source, count)
        self.meter.tokens("computed", prompt - cached)
        tokens = self._tenants.of(tenant)
        tokens.prompt += prompt
        tokens.cached += cached
        return tokens


def share_of(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0
