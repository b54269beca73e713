"""The audit log in the registry's database."""

from __future__ import annotations

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from cwm.adapters.sql.rows import AUDIT_EVENT, event_of, event_values
from cwm.adapters.sql.tables import audit_log
from cwm.adapters.sql.transactions import Transactions
from cwm.domain.audit import AuditEvent


class SqlAuditLog:
    """``cwm.ports.audit.AuditLog`` on SQLite or Postgres."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._transactions = Transactions(engine)

    async def record(self, event: AuditEvent) -> None:
        async with self._transactions.writing() as connection:
            await connection.execute(insert(audit_log).values(event_values(event)))

    async def events(self, tenant: str, limit: int) -> list[AuditEvent]:
        """Events of the same instant come in the order they were written, the last first."""
        newest_first = (
            select(*AUDIT_EVENT)
            .where(audit_log.c.tenant == tenant)
            .order_by(audit_log.c.timestamp.desc(), audit_log.c.id.desc())
            .limit(limit)
        )
        async with self._transactions.reading() as connection:
            return [event_of(row) for row in await connection.execute(newest_first)]
