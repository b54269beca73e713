"""Salt scopes: the name under which a tenant's KV is shared now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cwm.ports.clock import Clock
from cwm.ports.registry import Registry

_KEPT_SECONDS: Final = 2.0
_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class SaltScopes:
    """Gives the current salt scope for new sessions and for requests without a session. A session keeps its own."""

    registry: Registry
    clock: Clock
    _scopes: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)

    async def current(self, tenant: str, base: str) -> str:
        """The current scope. If another replica retired it, the change is seen at most two seconds later."""
        scope, until = self._scopes.get((tenant, base), ("", 0.0))
        now = self.clock.monotonic()
        if now < until:
            return scope
        if len(self._scopes) >= _KEPT:
            self._scopes.clear()
        current = await self.registry.current_scope(tenant, base)
        self._scopes[tenant, base] = current, now + _KEPT_SECONDS
        return current

    async def retire(self, tenant: str, salt_scope: str) -> str:
        """Replace a scope everywhere, so that no KV under its salt is used again. Returns its successor."""
        successor = await self.registry.retire_scope(tenant, salt_scope)
        self._scopes.clear()
        return successor
