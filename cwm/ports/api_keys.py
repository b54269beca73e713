"""Where API keys are kept, by their digest."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from cwm.domain.api_key import ApiKey


class ApiKeys(Protocol):
    async def add(self, key: ApiKey) -> None:
        """CWM-4001 when it cannot be written."""

    async def find_of_every_tenant(self, key_id: str) -> ApiKey | None:
        """As it is now, of whatever tenant: who asks is not known before. CWM-4002."""
        ...

    async def listed(self, tenant: str) -> list[ApiKey]:
        """Of one tenant, also those that are revoked or expired, the newest first. CWM-4002."""
        ...

    async def revoke(self, tenant: str, key_id: str, at: datetime) -> ApiKey | None:
        """The key as it is then; one that was revoked before stays as it was. None for an unknown one. CWM-4001."""
        ...
