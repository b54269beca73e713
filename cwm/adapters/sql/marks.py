"""Marks in the registry's database, each found by an index that is there for something else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, func, literal_column, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.window_lists import window_counts, window_search
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import reading
from cwm.domain.marks import Touch, WindowMark
from cwm.domain.session import SessionState

_MOST: Final = 1_000
_STATES: Final = tuple(sorted(SessionState))


class SqlMarks:
    """The port ``MarkRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def touched_of_every_tenant(
        self, connection: Connection, since: datetime
    ) -> Mapping[str, Mapping[str, Touch]]:
        # Not of one tenant: without statistics SQLite would read every session that it has, and not what changed.
        query = (
            select(sessions.c.tenant, sessions.c.id, sessions.c.updated_at, sessions.c.circle)
            .where(sessions.c.state.in_(_STATES), sessions.c.updated_at >= since)
            .order_by(sessions.c.updated_at.desc())
            .limit(_MOST)
        )
        touched: defaultdict[str, dict[str, Touch]] = defaultdict(dict)
        for row in connection.execute(query):
            touched[row.tenant][row.id] = Touch(row.updated_at, row.circle)
        return touched

    @reading
    def window_mark(self, connection: Connection, tenant: str) -> WindowMark:
        count = select(window_counts.c.windows).where(
            window_counts.c.tenant == tenant, window_counts.c.term == ""
        )
        newest = select(func.max(window_search.c.created_at)).where(window_search.c.tenant == tenant)
        pending = select(func.count()).where(
            windows.c.tenant == tenant,
            # SQLite uses the index of pending windows only where it sees the value, and prefers others without a second column.
            windows.c.durability == literal_column("'pending'"),
            windows.c.session_id >= "",
        )
        row = connection.execute(
            select(
                count.scalar_subquery().label("count"),
                pending.scalar_subquery().label("pending"),
                newest.scalar_subquery().label("newest"),
            )
        ).one()
        return WindowMark(row[0] or 0, row[1], row[2])
