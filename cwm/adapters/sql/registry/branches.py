"""Going back: an earlier turn becomes current, a branch is removed, a frozen session goes on."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Table, and_, delete, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.sessions import LIVE_STATES
from cwm.adapters.sql.registry.transcripts import remove_unsaid
from cwm.adapters.sql.rows import SESSION, at_a_time, session_of
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_tags, turns
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import writing
from cwm.domain.errors import TurnInFlightError, WindowInUseError
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Turn, TurnState


class BranchRecords:
    database: Database

    @writing
    def revert(self, connection: Connection, turn: Turn, at: datetime) -> Session | None:
        this = and_(turns.c.tenant == turn.tenant, turns.c.id == turn.id)
        statement = (
            update(sessions)
            .where(
                sessions.c.tenant == turn.tenant,
                sessions.c.id == turn.session_id,
                sessions.c.state.in_(LIVE_STATES),
                select(turns.c.id).where(this, turns.c.state == TurnState.ENDED.value).exists(),
            )
            .values(
                state=SessionState.ACTIVE.value,
                current_turn=turn.id,
                # What was asked before does not become current any more.
                current_number=sessions.c.next_number - 1,
                token_count=turn.total_tokens,
                head=select(turns.c.head).where(this).scalar_subquery(),
                revision=sessions.c.revision + 1,
                updated_at=at,
            )
            .returning(*SESSION)
        )
        row = connection.execute(statement).one_or_none()
        return None if row is None else session_of(row)

    @writing
    def remove_branch(self, connection: Connection, turn: Turn) -> int:
        here = and_(sessions.c.tenant == turn.tenant, sessions.c.id == turn.session_id)
        current = connection.execute(select(sessions.c.current_turn).where(here).with_for_update()).scalar()
        mine = and_(turns.c.tenant == turn.tenant, turns.c.session_id == turn.session_id)
        rows = connection.execute(select(turns.c.id, turns.c.parent, turns.c.state).where(mine)).all()
        if any(row.state == TurnState.ASKED.value for row in rows):
            # Its parent is found when it ends; from here on none is asked until this is committed.
            raise TurnInFlightError(
                f"Session '{turn.session_id}' has a turn in flight; ask again when the turn has ended.",
                session_id=turn.session_id,
                in_flight=True,
            )
        parents = {row.id: row.parent for row in rows}
        branch = {turn.id} & parents.keys()
        while more := {child for child, parent in parents.items() if parent in branch} - branch:
            branch |= more
        ids = sorted(branch)
        used, tags = (_referring(connection, table, turn.tenant, ids) for table in (windows, turn_tags))
        if current in branch or used or tags:
            reason = (
                "is the current turn"
                if current in branch
                else f"is in window {used[0]}"
                if used
                else f"has the tag {tags[0]}"
            )
            raise WindowInUseError(
                f"Turn '{turn.id}' or one that came from it {reason}.",
                turn=turn.id,
                windows=used,
                tags=tags,
                current_turn=current,
            )
        for batch in at_a_time(ids):
            connection.execute(delete(turns).where(mine, turns.c.id.in_(batch)))
        remove_unsaid(connection, turn.tenant, turn.session_id)
        return len(ids)

    @writing
    def unfreeze(self, connection: Connection, session: Session, at: datetime) -> Session | None:
        statement = (
            update(sessions)
            .where(
                sessions.c.tenant == session.tenant,
                sessions.c.id == session.id,
                sessions.c.created_at == session.created_at,
                sessions.c.state.in_([SessionState.FROZEN.value, SessionState.EXPIRED.value]),
            )
            .values(state=SessionState.ACTIVE.value, frozen_at=None, updated_at=at)
            .returning(*SESSION)
        )
        row = connection.execute(statement).one_or_none()
        return None if row is None else session_of(row)


def _referring(connection: Connection, table: Table, tenant: str, turn_ids: list[str]) -> list[str]:
    """The names in a table of windows or tags that refer to one of the turns."""
    return sorted(
        name
        for batch in at_a_time(turn_ids)
        for name in connection.execute(
            select(table.c.name).where(table.c.tenant == tenant, table.c.turn_id.in_(batch))
        ).scalars()
    )
