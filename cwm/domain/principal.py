"""Principals: who acts, and whose data it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cwm.domain.access import NOTHING, OF_A_GUEST, AccessScope, spelled
from cwm.domain.errors import InsufficientScopeError

OWNER: Final = "owner:"
WORKSPACE: Final = "workspace:"
TENANT: Final = "tenant"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated actor. Every principal has a tenant.

    ``scopes``, ``client`` and ``workspaces`` (names of those that it is a member of) vary from request to request and
    are not part of the identity: a refreshed access token is the same principal. They are those of the current request.
    ``is_guest``: it looks at the records of a tenant that it is no member of.
    """

    tenant: str
    subject: str
    scopes: frozenset[AccessScope] = field(default=NOTHING, compare=False)
    client: str = field(default="", compare=False)
    workspaces: frozenset[str] = field(default=frozenset(), compare=False)
    is_guest: bool = field(default=False, compare=False)

    @property
    def circles(self) -> frozenset[str]:
        """The circles that it is in, see ``cwm/domain/visibility.py``."""
        if self.is_guest:
            return frozenset({f"{OWNER}{self.subject}"})
        return frozenset({f"{OWNER}{self.subject}", TENANT, *(WORKSPACE + name for name in self.workspaces)})

    def acting_in(self, tenant: str) -> Principal:
        """Who runs the gateway and thereby acts on another tenant's records: by a subject that nobody there has, without rights there."""
        if tenant == self.tenant:
            return self
        return Principal(tenant, f"operator:{self.tenant}:{self.subject}", client=self.client)

    def as_guest_of(self, tenant: str) -> Principal:
        """Who looks at another tenant's records, with a subject that nobody there has."""
        subject = f"guest:{self.tenant}:{self.subject}"
        return Principal(tenant, subject, OF_A_GUEST & self.scopes, self.client, is_guest=True)

    def require(self, scopes: frozenset[AccessScope]) -> None:
        """Raises CWM-9002 when a scope is missing. Its context lists all needed scopes."""
        if not scopes <= self.scopes:
            missing_names = spelled(scopes - self.scopes)
            raise InsufficientScopeError(
                f"This needs the scope {' and '.join(missing_names)}, which the caller does not have.",
                reason="insufficient_scope",
                required=spelled(scopes),
            )
