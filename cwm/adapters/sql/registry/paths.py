"""The context of a turn: what each turn on the path to it adds, from the first to its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Column, Connection, Select, bindparam, literal, select

from cwm.adapters.sql.registry.packed import Delta, join, restore_json
from cwm.adapters.sql.rows import at_a_time
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import Message, TurnState


def _path(*content: Column[Any]) -> Select[Any]:
    """A turn and those above it, the nearest first."""
    whose = turns.c.tenant == bindparam("of_tenant")
    last = select(turns.c.parent, *content, literal(0).label("distance")).where(
        whose, turns.c.id == bindparam("of_turn"), turns.c.state == TurnState.ENDED.value
    )
    path = last.cte("path", recursive=True)
    above = select(turns.c.parent, *content, path.c.distance + 1).where(whose, turns.c.id == path.c.parent)
    path = path.union_all(above)
    return select(*path.c).order_by(path.c.distance)


# Built once, because building them takes longer than running them.
_TOKENS: Final = _path(turns.c.parent_at, turns.c.total_tokens, turns.c.digest, turns.c.packed)
_MESSAGES: Final = _path(turns.c.parent_messages, turns.c.messages)
_CONTENTS: Final = select(turn_contents.c.digest, turn_contents.c.packed).where(
    turn_contents.c.tenant == bindparam("of_tenant"),
    turn_contents.c.session_id == bindparam("of_session"),
    turn_contents.c.digest.in_(bindparam("of_digests", expanding=True)),
)


def tokens_of(connection: Connection, tenant: str, session_id: str, turn_id: str) -> TokenIds:
    """The ids of an ended turn's context. CWM-4004."""
    whose = {"session_id": session_id, "turn_id": turn_id}
    rows = connection.execute(_TOKENS, {"of_tenant": tenant, "of_turn": turn_id}).all()
    if not rows:
        raise StorageCorruptionError("The token ids of a turn are gone.", **whose)
    deltas = []
    end = rows[0].total_tokens
    for row in rows:
        size = row.total_tokens - row.parent_at
        deltas.append(Delta(row.packed or b"", size, end - row.parent_at))
        end = min(end, row.parent_at)
    return join(reversed(deltas), rows[0].digest, **whose)


def digests_of(connection: Connection, tenant: str, session_id: str, turn_id: str) -> list[str]:
    """The digests of the messages of an ended turn's context. CWM-4004."""
    rows = connection.execute(_MESSAGES, {"of_tenant": tenant, "of_turn": turn_id}).all()
    parts: list[list[str]] = []
    end = count = rows[0].parent_messages + len(rows[0].messages) if rows else -1
    for row in rows:
        parts.append(row.messages[: max(end - row.parent_messages, 0)])
        end = min(end, row.parent_messages)
    digests = [digest for part in reversed(parts) for digest in part]
    if len(digests) != count:
        raise StorageCorruptionError("Messages of a turn are gone.", session_id=session_id, turn_id=turn_id)
    return digests


def messages_of(connection: Connection, tenant: str, session_id: str, turn_id: str) -> list[Message]:
    """The messages of an ended turn's context. CWM-4004."""
    whose = {"session_id": session_id, "turn_id": turn_id}
    digests = digests_of(connection, tenant, session_id, turn_id)
    messages = {each.digest: each for each in messages_with(connection, tenant, session_id, digests)}
    if not messages.keys() >= set(digests):
        raise StorageCorruptionError("A message of a turn is gone.", **whose)
    return [messages[digest] for digest in digests]


def messages_with(
    connection: Connection, tenant: str, session_id: str, digests: Sequence[str]
) -> list[Message]:
    """Those of a session's messages that have these digests. CWM-4004."""
    messages: list[Message] = []
    for batch in at_a_time(sorted(set(digests))):
        which = {"of_tenant": tenant, "of_session": session_id, "of_digests": batch}
        rows = connection.execute(_CONTENTS, which).all()
        contents = restore_json((row.packed for row in rows), session_id=session_id)
        messages += map(Message, (row.digest for row in rows), contents)
    return messages
