"""Who runs the gateway: ``admin`` of its own tenant. ``admin`` of another tenant is for that tenant alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.errors import SecurityError
from cwm.domain.principal import Principal

_ADMIN: Final = frozenset({AccessScope.ADMIN})
ANOTHER_TENANT: Final = "another_tenant"
"""The reason of a refusal to ``admin`` of a tenant that is not the gateway's own."""


@dataclass(frozen=True, slots=True)
class Operators:
    """``home``: the gateway's own tenant. What all tenants share is commanded, and seen whole, from there only."""

    home: str

    def have(self, principal: Principal) -> bool:
        return principal.tenant == self.home and principal.scopes >= _ADMIN

    def require(self, principal: Principal) -> None:
        """CWM-9002 unless the principal runs the gateway."""
        principal.require(_ADMIN)
        if principal.tenant != self.home:
            raise SecurityError(
                "This concerns all tenants: it needs the scope admin in the gateway's own tenant.",
                reason=ANOTHER_TENANT,
            )

    def shown_to(self, principal: Principal) -> str:
        """The tenant of which the principal sees engines and figures; empty for those of all tenants."""
        return "" if self.have(principal) else principal.tenant
