"""The audit log in the registry's database."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import AUDIT_EVENT, event_of, event_values
from cwm.adapters.sql.tables import audit_log
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.audit import AuditEvent


class SqlAuditLog:
    """``cwm.ports.audit.AuditLog`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def record(self, connection: Connection, event: AuditEvent) -> None:
        connection.execute(insert(audit_log).values(event_values(event)))

    @reading
    def events(self, connection: Connection, tenant: str, limit: int) -> list[AuditEvent]:
        """Events of the same instant come in the order they were written, the last first."""
        newest_first = (
            select(*AUDIT_EVENT)
            .where(audit_log.c.tenant == tenant)
            .order_by(audit_log.c.timestamp.desc(), audit_log.c.id.desc())
            .limit(limit)
        )
        return [event_of(row) for row in connection.execute(newest_first)]
