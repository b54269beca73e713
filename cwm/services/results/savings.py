"""The tokens that result budgets saved: those that tools returned minus those delivered to agents."""

from __future__ import annotations

from dataclasses import dataclass, field

from cwm.domain.per_tenant import PerTenant
from cwm.ports.meter import Meter


@dataclass(slots=True)
class SavedTokens:
    """Totals of one tenant in this process, in tokens.

    ``had``: tokens of the results. ``delivered``: tokens delivered at once. ``read_later``: tokens that agents read
    afterwards. ``previewed`` counts the results over budget, ``unkept`` those of them that could not be stored.
    """

    had: int = 0
    delivered: int = 0
    read_later: int = 0
    previewed: int = 0
    unkept: int = 0

    @property
    def saved(self) -> int:
        """Saved tokens net of later reads; negative if previews cost more than they saved."""
        return self.had - self.delivered - self.read_later


@dataclass(slots=True)
class Savings:
    """Counts the tokens of results: for the metrics, and by tenant for the tenant's own statistics."""

    meter: Meter
    _tenants: PerTenant[SavedTokens] = field(default_factory=lambda: PerTenant(SavedTokens), init=False)

    def of(self, tenant: str) -> SavedTokens:
        return self._tenants.of(tenant)

    def whole(self, tenant: str, tokens: int) -> None:
        """Count a result that was delivered whole."""
        self._count(tenant, had=tokens, delivered=tokens)

    def preview(self, tenant: str, had: int, delivered: int, *, kept: bool) -> None:
        """Count a result over budget."""
        totals = self.of(tenant)
        totals.previewed += 1
        if not kept:
            totals.unkept += 1
        self.meter.event("result_previewed" if kept else "result_not_kept")
        self._count(tenant, had=had, delivered=delivered)

    def follow_up(self, tenant: str, tokens: int) -> None:
        """Count a later read of a stored result."""
        self._count(tenant, read_later=tokens)

    def _count(self, tenant: str, had: int = 0, delivered: int = 0, read_later: int = 0) -> None:
        totals = self.of(tenant)
        totals.had += had
        totals.delivered += delivered
        totals.read_later += read_later
        self.meter.result_tokens(had=had, delivered=delivered, read_later=read_later)
