"""Tags: names for turns, which keep them when their session is deleted."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_tags, turns
from cwm.adapters.sql.transactions import reading, writing
from cwm.adapters.sql.turns.transcripts import forget_deleted, locked
from cwm.adapters.sql.vault import Vault
from cwm.domain.session import SessionState
from cwm.domain.turn import TurnState, TurnTag

_AT_MOST: Final = 1000


class TagRecords:
    database: Database
    vault: Vault

    @writing
    def tag(self, connection: Connection, tag: TurnTag, *, move: bool = False) -> TurnTag | None:
        # The tag, then sessions by their ids: whoever removes turns of a session locks it, too.
        row = _row(connection, tag.tenant, tag.name, lock=True)
        for session_id in sorted({tag.session_id, *([row.session_id] if row is not None and move else [])}):
            state = locked(connection, tag.tenant, session_id)
        if tag.automatic and state == SessionState.DELETED.value:
            return None
        ended = select(turns.c.id).where(
            turns.c.tenant == tag.tenant,
            turns.c.session_id == tag.session_id,
            turns.c.id == tag.turn_id,
            turns.c.state == TurnState.ENDED.value,
        )
        if connection.execute(ended).first() is None:
            return None
        values = {column.key: getattr(tag, column.key) for column in turn_tags.c}
        connection.execute(insert_into(connection, turn_tags).values(values).on_conflict_do_nothing())
        row = _row(connection, tag.tenant, tag.name)
        # None: somebody has just removed it.
        if row is None or (move and row.turn_id != tag.turn_id):
            snapshots.put(connection, turn_tags, values)
            if row is not None:
                forget_deleted(connection, self.vault, tag.tenant, row.session_id)
            return tag
        return _tag_of(row)

    @writing
    def untag(self, connection: Connection, tenant: str, name: str) -> TurnTag | None:
        if (row := _row(connection, tenant, name, lock=True)) is not None:
            locked(connection, tenant, row.session_id)
        this = and_(turn_tags.c.tenant == tenant, turn_tags.c.name == name)
        row = connection.execute(delete(turn_tags).where(this).returning(*turn_tags.c)).one_or_none()
        if row is None:
            return None
        forget_deleted(connection, self.vault, tenant, row.session_id)
        return _tag_of(row)

    @reading
    def tags(
        self,
        connection: Connection,
        tenant: str,
        session_id: str | None = None,
        circles: frozenset[str] | None = None,
    ) -> list[TurnTag]:
        newest = select(turn_tags).where(turn_tags.c.tenant == tenant)
        if session_id is not None:
            newest = newest.where(turn_tags.c.session_id == session_id)
        if circles is not None:
            its = and_(sessions.c.tenant == tenant, sessions.c.id == turn_tags.c.session_id)
            newest = newest.where(select(sessions.c.id).where(its, sessions.c.circle.in_(circles)).exists())
        newest = newest.order_by(turn_tags.c.created_at.desc(), turn_tags.c.name).limit(_AT_MOST)
        return [_tag_of(row) for row in connection.execute(newest)]


def _row(connection: Connection, tenant: str, name: str, *, lock: bool = False) -> Row[Any] | None:
    this = select(turn_tags).where(turn_tags.c.tenant == tenant, turn_tags.c.name == name)
    return connection.execute(this.with_for_update() if lock else this).one_or_none()


def _tag_of(row: Row[Any]) -> TurnTag:
    return TurnTag(**{column.key: getattr(row, column.key) for column in turn_tags.c})
