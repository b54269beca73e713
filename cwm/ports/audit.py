"""Where events are written down, and how what was written is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cwm.domain.audit import AuditEvent
from cwm.domain.audit_chain import Anchor, AuditRecord, Checkpoint, Place


class AuditLog(Protocol):
    async def record(self, event: AuditEvent) -> None:
        """Append one event to its tenant's chain. Raises CWM-4001 when it cannot be written."""

    async def events(self, tenant: str, limit: int) -> list[AuditEvent]:
        """Newest first."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which records are wanted: ``since`` is the first moment that is, ``until`` the first that is not."""

    since: datetime | None = None
    until: datetime | None = None
    event: str | None = None
    subject: str | None = None
    outcome: str | None = None


class AuditTrail(Protocol):
    """The chains, tenant by tenant. Every call raises CWM-4002, those that write CWM-4001."""

    async def tenants(self) -> list[str]:
        """Every tenant of which anything was ever recorded and not taken away, in order."""

    async def page(
        self, tenant: str, after: int, limit: int, wanted: AuditFilter = ...
    ) -> Sequence[AuditRecord]:
        """Records with numbers over ``after``, in the order of the chain."""

    async def newest(self, tenant: str, limit: int, wanted: AuditFilter = ...) -> Sequence[AuditRecord]:
        """The last records of the chain that are wanted, the last first."""

    async def anchor(self, tenant: str) -> Anchor:
        """Where the chain begins; for one that was never pruned, number 0."""

    async def checkpoint(self, tenant: str) -> Checkpoint | None:
        """The furthest one that was kept."""

    async def keep_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Keep it unless one at least as far is kept; whether it was."""

    async def prune(self, tenant: str, before: datetime, limit: int) -> int:
        """Remove up to ``limit`` records from the front that are older, and anchor the rest; how many were.

        The newest record stays, and so does everything behind one that is not older.
        """


class ChainEnds(Protocol):
    def ends(self) -> Mapping[str, Place]:
        """The ends of the chains that this process has written to, by tenant."""
