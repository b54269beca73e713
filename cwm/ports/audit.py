"""Writing audit events and reading them again."""

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
        """The tenant's latest ``limit`` events, the newest first."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which records to return: from ``since`` (inclusive) to ``until`` (exclusive), with these values where given.

    ``before``: only those with lower numbers.
    """

    since: datetime | None = None
    until: datetime | None = None
    event: str | None = None
    subject: str | None = None
    outcome: str | None = None
    session_id: str | None = None
    window_name: str | None = None
    before: int | None = None


class AuditTrail(Protocol):
    """The stored chains, by tenant. Every method raises CWM-4002; those that write raise CWM-4001."""

    async def tenants(self) -> list[str]:
        """Every tenant that has audit records, ordered by name."""

    async def page(
        self, tenant: str, after: int, limit: int, criteria: AuditFilter = ...
    ) -> Sequence[AuditRecord]:
        """At most ``limit`` matching records with numbers above ``after``, in chain order."""

    async def newest(self, tenant: str, limit: int, criteria: AuditFilter = ...) -> Sequence[AuditRecord]:
        """The last ``limit`` matching records, the newest first."""

    async def anchor(self, tenant: str) -> Anchor:
        """Where the chain begins; number 0 for a chain that was never pruned."""

    async def sign_carried(self, anchor: Anchor) -> None:
        """Store the anchor signed with the record that it says is the last one older than the chain."""

    async def checkpoint(self, tenant: str) -> Checkpoint | None:
        """The checkpoint with the highest place, or None."""

    async def keep_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Store the checkpoint unless one at least as far is stored; whether it was stored."""

    async def prune(self, tenant: str, before: datetime, limit: int) -> int:
        """Remove at most ``limit`` records older than ``before`` from the front and move the anchor; returns how many.

        The newest record always stays. Removal stops at the first record that is not older.
        """


class ChainEnds(Protocol):
    def ends(self) -> Mapping[str, Place]:
        """The last place in each chain that this process has written to, by tenant."""

    async def examine(self, tenant: str) -> None:
        """Report a chain that no longer contains the last record that this process wrote. CWM-4002."""

    def fault(self) -> str | None:
        """What is wrong with the chains that this process writes to; None if nothing is."""
