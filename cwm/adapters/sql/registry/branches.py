"""Going back: an earlier turn becomes current, a branch is removed, a frozen session goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, delete, func, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.sessions import LIVE_STATES
from cwm.adapters.sql.rows import SESSION, at_a_time, session_of
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_tags, turns
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import reading, writing
from cwm.adapters.sql.turns.transcripts import remove_unsaid
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import TurnInFlightError, WindowInUseError
from cwm.domain.keep import TreeLimit, TreeSize
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Turn, TurnState


class BranchRecords:
    database: Database
    vault: Vault

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
        current, rows = at_rest(connection, turn.tenant, turn.session_id)
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
        _remove(connection, self.vault, turn.tenant, turn.session_id, ids)
        return len(ids)

    @reading
    def tree_size(self, connection: Connection, tenant: str, session_id: str) -> TreeSize:
        return _size(connection, tenant, session_id)

    @writing
    def make_room(self, connection: Connection, session: Session, limit: TreeLimit) -> TreeSize:
        current, rows = at_rest(connection, session.tenant, session.id)
        size, removed = _size(connection, session.tenant, session.id), TreeSize(0, 0)
        referred = {
            turn_id
            for table in (windows, turn_tags)
            for turn_id in connection.execute(
                select(table.c.turn_id).where(
                    table.c.tenant == session.tenant, table.c.session_id == session.id
                )
            ).scalars()
        }
        ends = {current, *referred, *(row.id for row in rows if row.main)}
        ids: list[str] = []
        for branch in _side_branches(rows, ends):
            if not limit.is_reached(size.less(removed)):
                break
            ids += [row.id for row in branch]
            tokens = sum(row.total_tokens - row.parent_at for row in branch)
            removed = TreeSize(len(ids), removed.tokens + tokens)
        _remove(connection, self.vault, session.tenant, session.id, ids)
        return removed

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


def at_rest(connection: Connection, tenant: str, session_id: str) -> tuple[str | None, Sequence[Any]]:
    """The current turn and the turns of a session that is locked and has none in flight, the oldest first. CWM-3002."""
    here = and_(sessions.c.tenant == tenant, sessions.c.id == session_id)
    current = connection.execute(select(sessions.c.current_turn).where(here).with_for_update()).scalar()
    columns = (
        turns.c.id,
        turns.c.parent,
        turns.c.state,
        turns.c.main,
        turns.c.parent_at,
        turns.c.total_tokens,
    )
    mine = and_(turns.c.tenant == tenant, turns.c.session_id == session_id)
    rows = connection.execute(select(*columns).where(mine).order_by(turns.c.number)).all()
    if any(row.state == TurnState.ASKED.value for row in rows):
        # Its parent is found when it ends; from here on none is asked until this is committed.
        raise TurnInFlightError(
            f"Session '{session_id}' has a turn in flight; ask again when the turn has ended.",
            session_id=session_id,
            in_flight=True,
        )
    return current, rows


def _side_branches(rows: Sequence[Row[Any]], ends: set[str | None]) -> Iterable[list[Row[Any]]]:
    """The branches from which none of ``ends`` came, those whose last turn is oldest first."""
    by_id = {row.id: row for row in rows}
    needed: set[str] = set()
    for end in ends:
        row = by_id.get(end)
        while row is not None and row.id not in needed:
            needed.add(row.id)
            row = by_id.get(row.parent)
    # A dictionary keeps the order in which its keys came; a later turn moves its branch to the end.
    branches: dict[str, list[Row[Any]]] = {}
    for row in rows:
        if row.id in needed:
            continue
        root = row
        while (above := by_id.get(root.parent)) is not None and above.id not in needed:
            root = above
        branches[root.id] = [*branches.pop(root.id, []), row]
    return branches.values()


def _size(connection: Connection, tenant: str, session_id: str) -> TreeSize:
    tokens = func.coalesce(func.sum(turns.c.total_tokens - turns.c.parent_at), 0)
    mine = select(func.count(), tokens).where(turns.c.tenant == tenant, turns.c.session_id == session_id)
    count, total = connection.execute(mine).one()
    return TreeSize(count, int(total))


def _remove(connection: Connection, vault: Vault, tenant: str, session_id: str, ids: Sequence[str]) -> None:
    for batch in at_a_time(ids):
        here = and_(turns.c.tenant == tenant, turns.c.session_id == session_id, turns.c.id.in_(batch))
        connection.execute(delete(turns).where(here))
    if ids:
        remove_unsaid(connection, vault, tenant, session_id)
