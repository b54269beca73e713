"""What is kept of what is said, for how long, and how much, tenant by tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Without ``messages`` turns have token ids alone. Lifetimes are in seconds, 0 for ever and None: as for all tenants."""

    messages: bool = True
    session_ttl: float | None = None
    session_kept: float | None = None


@dataclass(frozen=True, slots=True)
class KeepPolicies:
    """``by_tenant`` replaces ``default``."""

    default: KeepPolicy = KeepPolicy()
    by_tenant: Mapping[str, KeepPolicy] = field(default_factory=dict)

    def of(self, tenant: str | None) -> KeepPolicy:
        """The policy of a tenant; None: of those that have none of their own."""
        return self.by_tenant.get(tenant or "", self.default)
