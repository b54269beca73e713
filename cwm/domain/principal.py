"""Who acts, and whose data it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from cwm.domain.access import NOTHING, Scope, spelled
from cwm.domain.errors import InsufficientScopeError


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated actor. Always complete: there is no principal without a tenant.

    What it may do and the client it came with differ from request to request, and are no part of who it is: a
    refreshed access token is the same principal. Whoever asks for ``scopes`` has them from the request at hand.
    """

    tenant: str
    subject: str
    scopes: frozenset[Scope] = field(default=NOTHING, compare=False)
    client: str = field(default="", compare=False)

    def require(self, needed: frozenset[Scope]) -> None:
        """Raises CWM-9002 when a scope is missing; its context names all that are needed."""
        if not needed <= self.scopes:
            missing = spelled(needed - self.scopes)
            raise InsufficientScopeError(
                f"This needs the scope {' and '.join(missing)}, which the caller does not have.",
                reason="insufficient_scope",
                required=spelled(needed),
            )
