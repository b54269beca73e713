"""Recorded answers, by what requests that carry them have in common with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    case,
    literal,
    select,
    union_all,
)

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import SESSION, TURN, session_of, turn_of
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.transactions import glancing
from cwm.adapters.sql.turns.sealed import opened_turn
from cwm.adapters.sql.vault import Vault
from cwm.domain.answers import KeyKind, RecordedAnswer
from cwm.domain.session import SessionState
from cwm.domain.turn import TurnState

_MOST: Final = 64
_NEWEST: Final = 256
_LATER: Final = turns.alias("later")


class AnswerRecords:
    database: Database
    vault: Vault

    @glancing
    def recorded_answers(
        self,
        connection: Connection,
        tenant: str,
        author: str,
        model: str,
        kind: KeyKind,
        keys: Sequence[str],
        *,
        current: bool = False,
    ) -> list[RecordedAnswer]:
        key_of = {name: key for key in reversed(keys) for name in self.vault.names(tenant, key)}
        names = [name for key in keys for name in self.vault.names(tenant, key)]
        values = {f"key_{at}": name for at, name in enumerate(names)}
        who = {"of_tenant": tenant, "of_author": author, "of_model": model}
        rows = connection.execute(_statement(kind, len(names), current), who | values).all()
        return [self._answer(row, key_of[row.key]) for row in rows if key_of[row.key] == key_of[rows[0].key]]

    def _answer(self, row: Row[Any], key: str) -> RecordedAnswer:
        session: Any = row[len(TURN) :]
        return RecordedAnswer(
            key,
            opened_turn(self.vault, turn_of(row)),
            session_of(session),
            is_current=bool(row.is_current),
            is_awaited=bool(row.is_awaited),
            next_number=row.next_number,
        )


@cache
def _statement(kind: KeyKind, count: int, current: bool) -> Select[Any]:
    """For so many keys in ``kind``'s column, of all turns or of ``current`` ones. Built once: SQLAlchemy takes longer to build it than SQLite to run it."""
    column = turns.c[kind.value]
    found = union_all(*(_newest(column, at) for at in range(count))).subquery("found")
    is_current = sessions.c.current_turn == turns.c.id
    is_awaited = (
        select(_LATER.c.id)
        .where(
            _LATER.c.tenant == turns.c.tenant,
            _LATER.c.session_id == turns.c.session_id,
            _LATER.c.number > turns.c.number,
            _LATER.c.state == TurnState.ASKED.value,
        )
        .exists()
    )
    is_open = case((and_(is_current, ~is_awaited), 0), else_=1)
    return (
        select(
            *TURN,
            *SESSION,
            column.label("key"),
            is_current.label("is_current"),
            is_awaited.label("is_awaited"),
            sessions.c.next_number,
        )
        .select_from(
            found.join(turns, and_(turns.c.tenant == found.c.tenant, turns.c.id == found.c.id)).join(
                sessions, and_(sessions.c.tenant == turns.c.tenant, sessions.c.id == turns.c.session_id)
            )
        )
        .where(
            sessions.c.owner == bindparam("of_author"),
            sessions.c.model == bindparam("of_model"),
            sessions.c.state != SessionState.DELETED.value,
            *([is_current] if current else []),
        )
        .order_by(
            found.c.place,
            is_open,
            case((is_open == 0, turns.c.asked_at)),
            turns.c.asked_at.desc(),
        )
        .limit(_MOST)
    )


def _newest(column: Column[Any], at: int) -> Select[Any]:
    """The newest turns with one key, in the order of the index: nobody's many equal turns are read."""
    newest = (
        select(literal(at, Integer).label("place"), turns.c.tenant, turns.c.id)
        .where(
            turns.c.tenant == bindparam("of_tenant"),
            turns.c.author == bindparam("of_author"),
            column == bindparam(f"key_{at}"),
        )
        .order_by(turns.c.asked_at.desc())
        .limit(_NEWEST)
        .subquery()
    )
    return select(newest)
