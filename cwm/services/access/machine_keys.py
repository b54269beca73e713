"""Creates and revokes API keys for machines."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cwm.domain.access import AccessScope, spelled
from cwm.domain.api_key import NAME_PATTERN, ApiKey, digest_of, written
from cwm.domain.audit import AuditEvent
from cwm.domain.errors import InvalidParameterError
from cwm.domain.visibility import WORKSPACE_NAME
from cwm.ports.api_keys import ApiKeys
from cwm.ports.audit import AuditLog
from cwm.ports.clock import Clock

_OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class MachineKeys:
    """For the operator of a gateway. No scopes are checked: whoever can write the database needs none.

    ``by`` is who did it, for the audit log.
    """

    keys: ApiKeys
    audit: AuditLog
    clock: Clock

    async def create(
        self,
        tenant: str,
        name: str,
        scopes: frozenset[AccessScope],
        lasting: timedelta | None,
        workspaces: frozenset[str] = frozenset(),
        *,
        key_id: str | None = None,
        by: str = _OPERATOR,
    ) -> tuple[ApiKey, str]:
        """Create a key; also returns the text that the machine sends, which is stored nowhere.

        ``key_id``: 16 hexadecimal digits, chosen before so that a repeated request makes no second key. CWM-1003 if a name
        is invalid or there are no scopes; CWM-4001, also if the id is taken.
        """
        if not NAME_PATTERN.fullmatch(name):
            raise InvalidParameterError(
                "name: 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first.", field="name"
            )
        if not scopes:
            raise InvalidParameterError("scope: a key without a scope could do nothing.", field="scope")
        if not all(map(WORKSPACE_NAME.fullmatch, workspaces)):
            raise InvalidParameterError(
                "workspace: 1 to 64 letters, digits, '_', '-' and '.'.", field="workspace"
            )
        secret, now = secrets.token_urlsafe(32), self.clock.now()
        key = ApiKey(
            tenant,
            key_id or secrets.token_hex(8),
            name,
            scopes,
            digest_of(secret),
            created_at=now,
            expires_at=None if lasting is None else now + lasting,
            workspaces=workspaces,
        )
        await self.keys.add(key)
        await self._record("key.create", key, by)
        return key, written(key.key_id, secret)

    async def listed(self, tenant: str) -> list[ApiKey]:
        return await self.keys.listed(tenant)

    async def revoke(self, tenant: str, key_id: str, by: str = _OPERATOR) -> ApiKey:
        """Revoke a key: every gateway refuses it from now on. CWM-1003 if the key is unknown; CWM-4001."""
        key = await self.keys.revoke(tenant, key_id, self.clock.now())
        if key is None:
            raise InvalidParameterError(f"There is no key {key_id[:64]} in this tenant.", field="key_id")
        await self._record("key.revoke", key, by)
        return key

    async def _record(self, event: str, key: ApiKey, by: str) -> None:
        details = {
            "key_id": key.key_id,
            "name": key.name,
            "scopes": spelled(key.scopes),
            "workspaces": sorted(key.workspaces),
        }
        await self.audit.record(
            AuditEvent(self.clock.now(), key.tenant, by, event, "success", details=details)
        )
