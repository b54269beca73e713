"""Where events are written down."""

from __future__ import annotations

from typing import Protocol

from cwm.domain.audit import AuditEvent


class AuditLog(Protocol):
    async def record(self, event: AuditEvent) -> None:
        """Append one event. Raises CWM-4001 when it cannot be written."""

    async def events(self, tenant: str, limit: int) -> list[AuditEvent]:
        """Newest first."""
