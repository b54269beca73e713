"""Turns: asked, ended and read. On Postgres each is recorded in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Executable,
    Integer,
    LargeBinary,
    Row,
    String,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.sessions import HEAD_TOKENS, LIVE_STATES, head_of
from cwm.adapters.sql.rows import SESSION, TURN, at_a_time, session_of, turn_of, turn_values
from cwm.adapters.sql.tables.columns import Text, UtcDateTime
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_contents, turn_tags, turns
from cwm.adapters.sql.transactions import glancing, reading, writing_at_once
from cwm.adapters.sql.turns.packed import Packed, compress, pack_json
from cwm.adapters.sql.turns.paths import tokens_of
from cwm.adapters.sql.turns.sealed import opened_turn, sealed_turn
from cwm.adapters.sql.turns.stored_bytes import TURN_BYTES
from cwm.adapters.sql.turns.titles import title_of
from cwm.adapters.sql.vault import Vault
from cwm.domain.json_text import is_long
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import TAG, Turn, TurnParts, TurnQuery, TurnState
from cwm.domain.weight import MOST_AT_ONCE
from cwm.threads import aside

# Statements of every turn, built once: SQLAlchemy takes longer to build and look one up than SQLite to run it.
_THIS: Final = and_(sessions.c.tenant == bindparam("of_tenant"), sessions.c.id == bindparam("of_id"))
_LIVE: Final = and_(_THIS, sessions.c.state.in_(LIVE_STATES))
_THIS_TURN: Final = and_(turns.c.tenant == bindparam("of_tenant"), turns.c.id == bindparam("of_turn"))
_ASKED: Final = and_(_THIS_TURN, turns.c.state == TurnState.ASKED.value)
_ADDED: Final = sqlite.insert(turn_contents).on_conflict_do_nothing()
_FOUND: Final = select(*TURN).where(_THIS_TURN)
_TAGGED: Final = (
    select(*TURN)
    .join(turn_tags, and_(turn_tags.c.tenant == turns.c.tenant, turn_tags.c.turn_id == turns.c.id))
    .where(turns.c.tenant == bindparam("of_tenant"), turn_tags.c.name == bindparam("of_tag"))
)
_CURRENT: Final = (
    select(*TURN)
    .join(sessions, and_(sessions.c.tenant == turns.c.tenant, sessions.c.current_turn == turns.c.id))
    .where(_THIS)
)
_CURRENT_OF_EACH: Final = (
    select(*TURN)
    .join(sessions, and_(sessions.c.tenant == turns.c.tenant, sessions.c.current_turn == turns.c.id))
    .where(
        sessions.c.tenant == bindparam("of_tenant"), sessions.c.id.in_(bindparam("of_ids", expanding=True))
    )
)
_NEWEST: Final = (
    select(*TURN)
    .where(
        turns.c.tenant == bindparam("of_tenant"),
        turns.c.session_id == bindparam("of_id"),
        turns.c.number >= bindparam("from_number"),
    )
    .order_by(turns.c.number.desc())
    .limit(bindparam("most"))
)
_NUMBERED: Final = (
    update(sessions)
    .where(
        _LIVE,
        sessions.c.created_at == bindparam("made_at"),
        sessions.c.next_number == func.coalesce(bindparam("expected", type_=Integer), sessions.c.next_number),
    )
    .values(next_number=sessions.c.next_number + 1, updated_at=bindparam("to_asked_at"))
    .returning((sessions.c.next_number - 1).label("number"))
)
_BEGUN: Final = insert(turns)
_DROPPED: Final = delete(turns).where(_ASKED)

_EMPTY: Final[dict[str, Any]] = {
    "head": None,
    "packed": None,
    "messages": [],
    "title": None,
    "sealed_keys": None,
}
_EVERY_NUMBER: Final = 2**31 - 1
_MANY: Final = 16_384
_MOST_IN_FLIGHT: Final = 1000
_LOOKED_UP: Final = 64 * 1024

# Locks the session, then the turn: whoever removes either waits, or was faster.
_ENDING: Final = (
    select(turns.c.id)
    .select_from(
        sessions.join(turns, and_(turns.c.tenant == sessions.c.tenant, turns.c.session_id == sessions.c.id))
    )
    .where(_THIS, _ASKED)
    .with_for_update(key_share=True)
    .cte("ending")
)
_OPEN: Final = and_(
    _LIVE,
    sessions.c.revision == func.coalesce(bindparam("at_revision", type_=Integer), sessions.c.revision),
    select(_ENDING.c.id).exists(),
)
_PARENT: Final = turns.alias("parent")
_HEAD: Final = func.coalesce(
    bindparam("to_head", type_=Text),
    select(_PARENT.c.head)
    .where(_PARENT.c.tenant == bindparam("of_tenant"), _PARENT.c.id == bindparam("of_head"))
    .scalar_subquery(),
)
_GROWN: Final = sessions.c.stored_bytes + bindparam("more_bytes", type_=BigInteger)
_CONTINUED: Final = (
    update(sessions)
    .where(_OPEN, sessions.c.current_number < bindparam("below"))
    .values(
        state=SessionState.ACTIVE.value,
        token_count=bindparam("to_total_tokens"),
        head=_HEAD,
        revision=sessions.c.revision + 1,
        updated_at=bindparam("to_ended_at"),
        stored_bytes=_GROWN,
        listed=True,
        metadata=func.coalesce(bindparam("to_metadata", type_=JSON(none_as_null=True)), sessions.c.metadata),
        current_turn=bindparam("of_turn"),
        current_number=case(
            (sessions.c.current_number > bindparam("of_number"), sessions.c.current_number),
            else_=bindparam("of_number"),
        ),
    )
    .returning(*SESSION)
)
_UNMOVED: Final = (
    update(sessions)
    .where(_OPEN, sessions.c.current_number >= bindparam("at_least"))
    .values(
        updated_at=func.coalesce(bindparam("to_used_at", type_=UtcDateTime), sessions.c.updated_at),
        stored_bytes=_GROWN,
        listed=True,
    )
    .returning(*SESSION)
)
_FINAL: Final = tuple(
    column
    for column in turns.c
    if column.name
    not in {"tenant", "id", "session_id", "number", "state", "author", "asked_at", "holder", "head"}
)
_ENDED: Final = (
    update(turns)
    .where(_THIS_TURN)
    .values(
        **{column.name: bindparam(f"to_{column.name}", type_=column.type) for column in _FINAL},
        state=TurnState.ENDED.value,
        head=_HEAD,
    )
)
# What was taken for the line until another turn began it.
_SET_ASIDE: Final = (
    update(turns)
    .where(
        turns.c.tenant == bindparam("of_tenant"),
        turns.c.session_id == bindparam("of_id"),
        turns.c.id != bindparam("of_turn"),
        turns.c.main,
    )
    .values(main=False)
)


class TurnRecords:
    """The port ``TurnRecords``. The turns that it begins belong to ``holder``."""

    database: Database
    holder: str
    vault: Vault

    @writing_at_once
    def begin_turn(
        self, connection: Connection, turn: Turn, session_created_at: datetime, number: int | None = None
    ) -> Turn | None:
        turn = replace(turn, holder=self.holder, state=TurnState.ASKED)
        content = sealed_turn(self.vault, turn_values(turn) | _EMPTY)
        values = {
            **_this(turn),
            "made_at": session_created_at,
            "expected": number,
            **{f"to_{name}": value for name, value in content.items()},
        }
        if connection.dialect.name == "postgresql":
            number = connection.execute(_asked_at_once(), values).scalar_one_or_none()
        else:
            number = connection.execute(_NUMBERED, values).scalar_one_or_none()
            if number is not None:
                connection.execute(_BEGUN, content | {"number": number})
        return None if number is None else replace(turn, number=number)

    async def end_turn(
        self,
        turn: Turn,
        parts: TurnParts,
        metadata: Mapping[str, Any] | None = None,
        revision: int | None = None,
        *,
        begins_line: bool = False,
    ) -> Session | None:
        large = len(parts.token_ids) > _MANY or any(is_long(message.content) for message in parts.messages)
        added = await aside(MOST_AT_ONCE if large else 0, lambda: self._added(turn, parts))
        return await self._end_turn(turn, parts.token_ids, added, metadata, revision, begins_line=begins_line)

    def _added(self, turn: Turn, parts: TurnParts) -> _Added:
        packed, _ = compress(parts.token_ids)
        row = turn_values(turn) | {
            "packed": packed,
            "messages": [message.digest for message in parts.messages],
            "title": title_of(parts.messages),
            "sealed_keys": None,
        }
        messages = {}
        for message in parts.messages:
            name, content = self.vault.name(turn.tenant, message.digest), pack_json(message.content)
            sealed = self.vault.seal(content.stored, "message", turn.tenant, name)
            messages[name] = Packed(sealed, content.weight)
        return _Added(sealed_turn(self.vault, row), messages)

    @writing_at_once
    def _end_turn(
        self,
        connection: Connection,
        turn: Turn,
        token_ids: TokenIds,
        parts: _Added,
        metadata: Mapping[str, Any] | None,
        revision: int | None,
        *,
        begins_line: bool,
    ) -> Session | None:
        added = parts.messages
        values = {
            **_this(turn),
            **_head(connection, self.vault, turn, token_ids),
            **{f"to_{column.name}": parts.row[column.name] for column in _FINAL},
            "to_metadata": None if metadata is None else dict(metadata),
            "of_number": turn.number,
            "at_revision": revision,
            "below": _EVERY_NUMBER if begins_line else turn.number,
            "more_bytes": _row_bytes(turn, parts.row) + _new_bytes(connection, turn, added),
        }
        row = _recorded(connection, _CONTINUED, values, added) if turn.main else None
        if row is not None and begins_line:
            connection.execute(_SET_ASIDE, _this(turn))
        if row is None:
            values |= {
                "to_main": False,
                "at_least": turn.number if turn.main else 0,
                "to_used_at": None if turn.main else turn.ended_at,
            }
            row = _recorded(connection, _UNMOVED, values, added)
        if row is None:
            connection.execute(_DROPPED, _this(turn))
        return None if row is None else session_of(row)

    @writing_at_once
    def drop_turn(self, connection: Connection, turn: Turn) -> None:
        connection.execute(_DROPPED, _this(turn))

    @glancing
    def turn(self, connection: Connection, tenant: str, turn_id: str) -> Turn | None:
        tag = turn_id.removeprefix(TAG)
        which = (
            {"of_tenant": tenant, "of_turn": turn_id}
            if tag == turn_id
            else {"of_tenant": tenant, "of_tag": tag}
        )
        row = connection.execute(_FOUND if tag == turn_id else _TAGGED, which).one_or_none()
        return None if row is None else opened_turn(self.vault, turn_of(row))

    @glancing
    def current_turn(self, connection: Connection, tenant: str, session_id: str) -> Turn | None:
        row = connection.execute(_CURRENT, {"of_tenant": tenant, "of_id": session_id}).one_or_none()
        return None if row is None else opened_turn(self.vault, turn_of(row))

    @reading
    def turns(self, connection: Connection, tenant: str, session_id: str, query: TurnQuery) -> list[Turn]:
        statement = _NEWEST if query.before is None else _NEWEST.where(turns.c.number < query.before)
        which = {
            "of_tenant": tenant,
            "of_id": session_id,
            "most": query.limit,
            "from_number": query.first,
        }
        return [opened_turn(self.vault, turn_of(row)) for row in connection.execute(statement, which)]

    @reading
    def turns_in_flight(self, connection: Connection, tenant: str, author: str) -> list[Turn]:
        own = and_(turns.c.tenant == tenant, turns.c.author == author)
        in_flight = select(*TURN).where(own, turns.c.state == TurnState.ASKED.value).limit(_MOST_IN_FLIGHT)
        return [opened_turn(self.vault, turn_of(row)) for row in connection.execute(in_flight)]

    @reading
    def asked_turns_of_every_tenant(self, connection: Connection, limit: int) -> list[Turn]:
        """Their profiles stay sealed: turns that a dead gateway left are forgotten also without its key."""
        in_flight = select(*TURN).where(turns.c.state == TurnState.ASKED.value)
        return [turn_of(row) for row in connection.execute(in_flight.order_by(turns.c.asked_at).limit(limit))]

    @reading
    def current_turns(
        self, connection: Connection, tenant: str, session_ids: Sequence[str]
    ) -> dict[str, Turn]:
        rows = connection.execute(_CURRENT_OF_EACH, {"of_tenant": tenant, "of_ids": list(session_ids)})
        return {row.session_id: opened_turn(self.vault, turn_of(row)) for row in rows}


class _Added(NamedTuple):
    """What a turn adds: the columns of its row, and its messages by name, with what they weigh."""

    row: Mapping[str, Any]
    messages: Mapping[str, Packed]


def _this(turn: Turn) -> dict[str, Any]:
    return {"of_tenant": turn.tenant, "of_id": turn.session_id, "of_turn": turn.id}


def _row_bytes(turn: Turn, row: Mapping[str, Any]) -> int:
    return TURN_BYTES + len(turn.client) + len(json.dumps(row["messages"])) + len(row["packed"])


def _new_bytes(connection: Connection, turn: Turn, added: Mapping[str, Packed]) -> int:
    """What the messages take that are not stored yet. Small ones are not looked up: they count again."""
    sizes = {name: len(packed.stored) for name, packed in added.items()}
    if sum(sizes.values()) > _LOOKED_UP:
        for batch in at_a_time(sorted(sizes)):
            there = select(turn_contents.c.digest).where(
                turn_contents.c.tenant == turn.tenant,
                turn_contents.c.session_id == turn.session_id,
                turn_contents.c.digest.in_(batch),
            )
            for name in connection.execute(there).scalars():
                del sizes[name]
    return sum(sizes.values())


def _head(connection: Connection, vault: Vault, turn: Turn, token_ids: TokenIds) -> dict[str, Any]:
    """Parameters of ``_HEAD``: the head of the turn's context, or the parent that has the same."""
    if turn.parent_at >= HEAD_TOKENS:
        return {"to_head": None, "of_head": turn.parent}
    shared: TokenIds = ()
    if turn.parent is not None and turn.parent_at:
        shared = tokens_of(connection, vault, turn.tenant, turn.session_id, turn.parent)[: turn.parent_at]
    head = head_of((*shared, *token_ids[:HEAD_TOKENS]))
    return {"to_head": head and vault.name(turn.tenant, head), "of_head": None}


def _recorded(
    connection: Connection, recording: Update, values: dict[str, Any], added: Mapping[str, Packed]
) -> Row[Any] | None:
    """The session's row after ``recording``, if it applies; then the turn has ended and its messages, by name, are stored."""
    if connection.dialect.name == "postgresql":
        arrays = {
            "of_digests": [*added],
            "of_contents": [packed.stored for packed in added.values()],
            "of_weights": [packed.weight for packed in added.values()],
        }
        return connection.execute(_ended_at_once(recording), values | arrays).one_or_none()
    row = connection.execute(recording, values).one_or_none()
    if row is not None:
        connection.execute(_ENDED, values)
        keys = {"tenant": values["of_tenant"], "session_id": values["of_id"]}
        rows = [
            {**keys, "digest": name, "packed": packed.stored, "weight": packed.weight}
            for name, packed in added.items()
        ]
        if rows:
            connection.execute(_ADDED, rows)
    return row


@cache
def _asked_at_once() -> Executable:
    """``_NUMBERED`` and the new turn in one Postgres statement, which returns the number."""
    numbered = _NUMBERED.cte("asked")
    columns = [
        numbered.c.number if column.name == "number" else bindparam(f"to_{column.name}", type_=column.type)
        for column in turns.c
    ]
    return insert(turns).from_select(turns.c.keys(), select(*columns)).returning(turns.c.number)


@cache
def _ended_at_once(recording: Update) -> Executable:
    """Everything that :func:`_recorded` writes, in one Postgres statement."""
    session = recording.cte("session")
    ended = _ENDED.where(select(session.c.id).exists())
    digests = bindparam("of_digests", type_=postgresql.ARRAY(String))
    packed = bindparam("of_contents", type_=postgresql.ARRAY(LargeBinary))
    weights = bindparam("of_weights", type_=postgresql.ARRAY(BigInteger))
    rows = select(
        session.c.tenant, session.c.id, func.unnest(digests), func.unnest(packed), func.unnest(weights)
    )
    added = postgresql.insert(turn_contents).from_select(turn_contents.c.keys(), rows)
    return select(session).add_cte(ended.cte("ended"), added.on_conflict_do_nothing().cte("added"))
