"""Storage of the tasks of upstreams."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from cwm.domain.upstream_tasks import UpstreamTask


class UpstreamTaskRecords(Protocol):
    """The tasks that clients have handles of, for all gateways. CWM-4001 and 4002 while the store is unavailable."""

    async def keep(self, task: UpstreamTask, most: int) -> bool:
        """Store a new task. False, and nothing stored, if its owner has ``most`` open ones at its creation."""

    async def find(self, tenant: str, handle: str) -> UpstreamTask | None:
        """The task, which may have expired; None if it was never stored or has been removed."""

    async def change(self, task: UpstreamTask) -> None:
        """Store what has changed of a task. One that was removed stays so."""

    async def of_owner(
        self, tenant: str, owner: str, after: UpstreamTask | None = None, limit: int = 100
    ) -> Sequence[UpstreamTask]:
        """At most ``limit`` of the owner's tasks behind ``after``, the newest first."""

    async def forget(self, task: UpstreamTask) -> None: ...

    async def forget_expired_of_every_tenant(self, at: datetime) -> None:
        """Remove the tasks that expired by ``at``."""
