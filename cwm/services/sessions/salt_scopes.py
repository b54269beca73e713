"""Scopes: under which name a tenant's KV is shared, now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cwm.ports.clock import Clock
from cwm.ports.registry import Registry

_KEPT_SECONDS: Final = 2.0
_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class Scopes:
    """A session carries its scope; this is for those that have none yet, and for requests without a session."""

    registry: Registry
    clock: Clock
    _known: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)

    async def current(self, tenant: str, base: str) -> str:
        """The scope in force, at most two seconds late where another replica retired it."""
        known, until = self._known.get((tenant, base), ("", 0.0))
        now = self.clock.monotonic()
        if now < until:
            return known
        if len(self._known) >= _KEPT:
            self._known.clear()
        current = await self.registry.current_scope(tenant, base)
        self._known[tenant, base] = current, now + _KEPT_SECONDS
        return current

    async def retire(self, tenant: str, salt_scope: str) -> str:
        """Make everybody leave a scope: whatever an engine still holds under its salt is never asked for again."""
        successor = await self.registry.retire_scope(tenant, salt_scope)
        self._known.clear()
        return successor
