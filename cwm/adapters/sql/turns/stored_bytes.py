"""What is stored of what was said, in bytes: a sum beside each session and each conversation of OpenAI's API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, String, and_, cast, func, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.responses import conversations, responses
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.transactions import reading

TURN_BYTES: Final = 1024
"""Of a turn's row beside its tokens, the digests of its messages and its client's name."""
ROW_BYTES: Final = 1024
"""Of the row of a session or conversation."""


class SqlStoredBytes:
    """The port ``StoredBytes`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def by_owner(self, connection: Connection, tenant: str) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for table in (sessions, conversations):
            sums = select(table.c.owner, func.sum(ROW_BYTES + table.c.stored_bytes)).where(
                table.c.tenant == tenant
            )
            for owner, size in connection.execute(sums.group_by(table.c.owner)):
                total[owner] += int(size)
        return total


def count_again(connection: Connection, tenant: str, session_id: str) -> None:
    """Of a session from which something was removed, or which was copied. Lengths are read, not contents."""
    beside = TURN_BYTES + func.length(turns.c.client) + func.length(cast(turns.c.messages, String))
    rows = func.coalesce(func.sum(beside + func.coalesce(func.length(turns.c.packed), 0)), 0)
    messages = func.coalesce(func.sum(func.length(turn_contents.c.packed)), 0)
    answers = func.coalesce(
        func.sum(func.length(responses.c.packed) + func.coalesce(func.length(responses.c.asked), 0)), 0
    )
    sums = [
        select(each).where(table.c.tenant == tenant, table.c.session_id == session_id).scalar_subquery()
        for table, each in ((turns, rows), (turn_contents, messages), (responses, answers))
    ]
    this = and_(sessions.c.tenant == tenant, sessions.c.id == session_id)
    connection.execute(update(sessions).where(this).values(stored_bytes=sums[0] + sums[1] + sums[2]))
