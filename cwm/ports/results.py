"""Which stored results there are; what is in them is kept apart, as contents."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from cwm.domain.results import StoredResult


class ResultRecords(Protocol):
    """The records of stored results, the same for every replica.

    Every method raises StorageReadError or StorageWriteError when the store is away.
    """

    async def keep(self, result: StoredResult, quota_bytes: int | None) -> bool:
        """Keep it once a crash cannot lose it. False when its owner would then have more than ``quota_bytes``.

        What had expired when it was made does not count.
        """

    async def find(self, tenant: str, handle: str) -> StoredResult | None:
        """The one under ``handle``, which may have expired; None for one that was never kept, or is forgotten."""

    async def used_bytes(self, tenant: str, owner: str, at: datetime) -> int:
        """The size of all that ``owner`` has that does not expire before ``at``."""

    async def expired_of_every_tenant(self, at: datetime, limit: int) -> list[StoredResult]:
        """At most ``limit`` that expire at ``at`` or before, the oldest first."""

    async def forget(self, result: StoredResult) -> None: ...
