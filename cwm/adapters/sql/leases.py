"""Leases in the registry's database: which gateways are alive, and which one leads."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, or_, select

from cwm.adapters.sql.clock import Now, now
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.gateways import leases
from cwm.adapters.sql.transactions import reading, writing
from cwm.ports.clock import Clock
from cwm.ports.leases import Lease


class SqlLeases:
    """The port ``Leases`` on SQLite or Postgres.

    Without ``clock``, Postgres's own clock gives their age, so gateways with different clocks agree on who is alive.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self._clock = clock

    @writing
    def take(self, connection: Connection, name: str, holder: str, stale: timedelta) -> bool:
        at = now(connection, self._clock)
        return _put(connection, name, holder, at, leases.c.seen_at < at - stale)

    @writing
    def note(self, connection: Connection, name: str, holder: str, at: datetime) -> None:
        _put(connection, name, holder, at, leases.c.seen_at < at)

    @writing
    def drop(self, connection: Connection, name: str, holder: str) -> None:
        connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == holder))

    @writing
    def forget(self, connection: Connection, stale: timedelta) -> None:
        at = now(connection, self._clock)
        connection.execute(delete(leases).where(leases.c.seen_at < at - stale))

    @reading
    def seen(self, connection: Connection, name: str) -> Lease | None:
        at = now(connection, self._clock)
        query = select(leases.c.holder, leases.c.seen_at).where(leases.c.name == name)
        if isinstance(at, datetime):
            row = connection.execute(query).one_or_none()
            return None if row is None else Lease(row.holder, row.seen_at, at - row.seen_at)
        row = connection.execute(query.add_columns(at.label("now"))).one_or_none()
        return None if row is None else Lease(row.holder, row.seen_at, row.now - row.seen_at)


def _put(connection: Connection, name: str, holder: str, at: Now, free: ColumnElement[Any]) -> bool:
    statement = (
        insert_into(connection, leases)
        .values(name=name, holder=holder, seen_at=at)
        .on_conflict_do_update(
            index_elements=["name"],
            set_={"holder": holder, "seen_at": at},
            where=or_(leases.c.holder == holder, free),
        )
        .returning(leases.c.name)
    )
    return connection.execute(statement).first() is not None
