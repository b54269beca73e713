"""Storage of API keys, as digests."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from cwm.domain.api_key import ApiKey


class ApiKeys(Protocol):
    async def add(self, key: ApiKey) -> None:
        """Store a new key. CWM-4001 when it cannot be written."""

    async def find_of_every_tenant(self, key_id: str) -> ApiKey | None:
        """The key's current record, of whatever tenant: the caller's tenant is not known yet. CWM-4002."""
        ...

    async def listed(self, tenant: str) -> list[ApiKey]:
        """All keys of one tenant, the newest first, revoked and expired ones included. CWM-4002."""
        ...

    async def revoke(self, tenant: str, key_id: str, at: datetime) -> ApiKey | None:
        """Revoke a key and return its record; None for an unknown key. CWM-4001.

        A key that was revoked before keeps its first revocation time.
        """
        ...

    async def note_use(self, tenant: str, key_id: str, at: datetime) -> None:
        """Record that the key was used, unless a later use is recorded. CWM-4001."""
