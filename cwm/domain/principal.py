"""Principals: who acts, and whose data it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cwm.domain.access import NOTHING, AccessScope, spelled
from cwm.domain.errors import InsufficientScopeError

OWNER: Final = "owner:"
WORKSPACE: Final = "workspace:"
TENANT: Final = "tenant"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated actor. Every principal has a tenant.

    ``scopes``, ``client`` and ``workspaces`` (names of those that it is a member of) vary from request to request and
    are not part of the identity: a refreshed access token is the same principal. They are those of the current request.
    """

    tenant: str
    subject: str
    scopes: frozenset[AccessScope] = field(default=NOTHING, compare=False)
    client: str = field(default="", compare=False)
    workspaces: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def circles(self) -> frozenset[str]:
        """The circles that it is in, see ``cwm/domain/visibility.py``."""
        return frozenset({f"{OWNER}{self.subject}", TENANT, *(WORKSPACE + name for name in self.workspaces)})

    def require(self, needed: frozenset[AccessScope]) -> None:
        """Raises CWM-9002 when a scope is missing. Its context lists all needed scopes."""
        if not needed <= self.scopes:
            missing = spelled(needed - self.scopes)
            raise InsufficientScopeError(
                f"This needs the scope {' and '.join(missing)}, which the caller does not have.",
                reason="insufficient_scope",
                required=spelled(needed),
            )
