"""Words in what was said: the messages of a session are read, the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, and_, select

from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.turns.packed import text_of
from cwm.adapters.sql.turns.sealed import messages_in
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError, StoredTooLargeError
from cwm.domain.showable import recorded
from cwm.domain.turn import TurnState
from cwm.domain.weight import MOST_AT_ONCE, Room
from cwm.domain.word_search import Words

MOST_SEARCHED: Final = 256 * 2**20
"""The weight of the messages of one session that are read for one search."""
_ROWS_AT_ONCE: Final = 500


class SaidIn(NamedTuple):
    """A turn, and the digests of the messages that it adds and that count."""

    turn_id: str
    number: int
    asked_at: datetime
    digests: Sequence[str]


def said_in_turns(
    connection: Connection, vault: Vault, session: tuple[str, str], up_to: str | None
) -> list[SaidIn]:
    """The ended turns of the session (its tenant and id), or those on the path to one; the newest first."""
    said = [
        SaidIn(row.id, row.number, row.asked_at, messages_in(vault, session[0], row.id, row.messages)[:count])
        for row, count in _turns(connection, *session, up_to)
    ]
    return sorted(said, key=lambda each: each.number, reverse=True)


def parts_of(sizes: dict[str, int]) -> Iterator[list[str]]:
    """The names, in the parts in which they are read; without those that are too large, and from where it would be more than is searched."""
    part, weight, total = list[str](), 0, 0
    for name, size in sizes.items():
        total += size
        if total > MOST_SEARCHED:
            break
        if size > MOST_AT_ONCE:
            continue
        if part and (weight + size > MOST_AT_ONCE or len(part) == _ROWS_AT_ONCE):
            yield part
            part, weight = [], 0
        part.append(name)
        weight += size
    if part:
        yield part


def matches_in(
    rows: Sequence[Row[Any]], vault: Vault, tenant: str, words: Words
) -> dict[str, tuple[str, str]]:
    """Role and excerpt of each message that has the words, by its name.

    A damaged one is passed over: it must not end every search of its tenant.
    """
    matches: dict[str, tuple[str, str]] = {}
    for row in rows:
        try:
            stored = vault.open(row.packed, "message", tenant, row.digest)
            text = text_of(stored, row.weight, Room()) if stored else b""
            content = recorded(text) if text and words.may_be_in(text) else {}
        except (StorageCorruptionError, StoredTooLargeError, ValueError):
            continue
        excerpt = words.excerpt(content)
        if excerpt is not None:
            matches[row.digest] = (str(content.get("role", "")), excerpt)
    return matches


def _turns(
    connection: Connection, tenant: str, session_id: str, up_to: str | None
) -> Iterator[tuple[Any, int | None]]:
    """Each turn with how many of its messages count (None: all)."""
    columns = (
        turns.c.id,
        turns.c.parent,
        turns.c.number,
        turns.c.asked_at,
        turns.c.parent_messages,
        turns.c.messages,
    )
    mine = and_(turns.c.tenant == tenant, turns.c.session_id == session_id)
    rows: list[Any] = list(
        connection.execute(select(*columns).where(mine, turns.c.state == TurnState.ENDED.value))
    )
    if up_to is None:
        yield from ((row, None) for row in rows)
        return
    by_id = {row.id: row for row in rows}
    row, end = by_id.get(up_to), None
    while row is not None:
        yield row, None if end is None else max(end - row.parent_messages, 0)
        end = row.parent_messages if end is None else min(end, row.parent_messages)
        row = by_id.get(row.parent)
