"""The API keys of a tenant, for whoever has the scope admin in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.api_key import ApiKey
from cwm.domain.errors import InsufficientScopeError, InvalidParameterError
from cwm.domain.principal import Principal
from cwm.services.access.machine_keys import MachineKeys

_ADMIN: Final = frozenset({AccessScope.ADMIN})


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """``accepted``: whether this gateway takes API keys. A key opens no more than its creator may do.

    ``admin`` neither reads nor goes on with what others keep to themselves. So a workspace that the creator is not in, and a
    name that another machine's key has, need ``others:read``: keys of one name are one principal.
    """

    keys: MachineKeys
    accepted: bool

    async def listed(self, principal: Principal) -> list[ApiKey]:
        """All of them, the newest first. CWM-9002 without the scope admin; CWM-4002."""
        principal.require(_ADMIN)
        return await self.keys.listed(principal.tenant)

    async def create(
        self,
        principal: Principal,
        name: str,
        scopes: frozenset[AccessScope],
        lasting: timedelta | None,
        workspaces: frozenset[str] = frozenset(),
        key_id: str | None = None,
    ) -> tuple[ApiKey, str]:
        """As :meth:`MachineKeys.create`. CWM-9002 for what the creator may not give away; CWM-1003 where no keys are taken."""
        self._require_accepted()
        principal.require(_ADMIN | scopes)
        if not workspaces <= principal.workspaces:
            _require_others(principal, "Of a workspace that you are not in, a key reads what you may not")
        if f"key:{name}" != principal.subject and name in {key.name for key in await self.listed(principal)}:
            _require_others(
                principal,
                "Another key has this name, and keys of one name are one machine with all that it has",
            )
        return await self.keys.create(
            principal.tenant, name, scopes, lasting, workspaces, key_id=key_id, by=principal.subject
        )

    async def revoke(self, principal: Principal, key_id: str) -> ApiKey:
        """As :meth:`MachineKeys.revoke`. CWM-9002 without the scope admin."""
        principal.require(_ADMIN)
        return await self.keys.revoke(principal.tenant, key_id, by=principal.subject)

    def _require_accepted(self) -> None:
        if not self.accepted:
            raise InvalidParameterError(
                "This gateway takes no API keys: CWM_API_KEYS is false.", field="name"
            )


def _require_others(principal: Principal, why: str) -> None:
    if AccessScope.OTHERS_READ not in principal.scopes:
        raise InsufficientScopeError(
            f"{why}: that needs the scope {AccessScope.OTHERS_READ}.",
            reason="insufficient_scope",
            required=[AccessScope.OTHERS_READ.value],
        )
