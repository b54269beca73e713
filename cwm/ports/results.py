"""Records of stored results. Their contents are stored separately."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from cwm.domain.results import ResultUse, StoredResult


class ResultRecords(Protocol):
    """The records of stored results, shared by all replicas.

    Every method raises StorageReadError or StorageWriteError when the store is unavailable.
    """

    async def keep(self, result: StoredResult, quota_bytes: int | None) -> bool:
        """Store the record; it returns once a crash cannot lose it.

        False, and nothing stored, when its owner would exceed ``quota_bytes``. Results that had expired when this
        one was created do not count.
        """

    async def find(self, tenant: str, handle: str) -> StoredResult | None:
        """The record, which may have expired; None when it was never stored or has been removed."""

    async def use(self, tenant: str, owner: str, at: datetime) -> ResultUse:
        """Of the owner's results that expire after ``at``."""

    async def of_owner(
        self, tenant: str, owner: str, after: StoredResult | None = None, limit: int = 100
    ) -> list[StoredResult]:
        """At most ``limit`` records of the owner's results behind ``after``, those that expire last before others."""

    async def expired_of_every_tenant(self, at: datetime, limit: int) -> list[StoredResult]:
        """At most ``limit`` results that expired by ``at``, the oldest first."""

    async def forget(self, result: StoredResult) -> None: ...
