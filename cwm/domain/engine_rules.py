"""What an installation says of an engine, beyond where it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineRules:
    """``tenants``: whose sessions it serves, everyone's if None. ``max_running``: how many requests it may have at once.

    ``deployment`` stands for all that its KV depends on, where it does not report a digest of that. A
    router stands in for several engines: which of them answers, CWM does not know.
    """

    tenants: frozenset[str] | None = None
    deployment: str = ""
    max_running: int | None = None
    is_router: bool = False

    def serves(self, tenant: str) -> bool:
        """An empty ``tenant`` is CWM itself."""
        return not tenant or self.tenants is None or tenant in self.tenants

    def serves_only(self, tenant: str) -> bool:
        return self.tenants == frozenset({tenant})


NO_RULES = EngineRules()
