"""Leases in the registry's database: which gateways live, and which one leads."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables import leases
from cwm.adapters.sql.transactions import reading, writing


class SqlLeases:
    """``cwm.ports.leases.Leases`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def take(
        self, connection: Connection, name: str, holder: str, at: datetime, stale_before: datetime
    ) -> bool:
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        taking = (
            dialect.insert(leases)
            .values(name=name, holder=holder, seen_at=at)
            .on_conflict_do_update(
                index_elements=["name"],
                set_={"holder": holder, "seen_at": at},
                where=or_(leases.c.holder == holder, leases.c.seen_at < stale_before),
            )
            .returning(leases.c.name)
        )
        return connection.execute(taking).first() is not None

    @writing
    def drop(self, connection: Connection, name: str, holder: str) -> None:
        connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == holder))

    @writing
    def forget(self, connection: Connection, stale_before: datetime) -> None:
        connection.execute(delete(leases).where(leases.c.seen_at < stale_before))

    @reading
    def seen(self, connection: Connection, name: str) -> tuple[str, datetime] | None:
        row = connection.execute(
            select(leases.c.holder, leases.c.seen_at).where(leases.c.name == name)
        ).one_or_none()
        return None if row is None else (row.holder, row.seen_at)
