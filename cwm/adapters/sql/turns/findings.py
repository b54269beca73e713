"""Words in what was said: every message of a session is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zstandard
from sqlalchemy import Connection, and_, select

from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.turns.sealed import messages_in
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.showable import recorded
from cwm.domain.turn import TurnState
from cwm.domain.word_search import Finding, Words


def findings_in(
    connection: Connection, vault: Vault, session: tuple[str, str], words: Words, up_to: str | None
) -> tuple[list[Finding], int]:
    """See the port. ``session``: its tenant and id."""
    tenant, session_id = session
    matches, count = _matches(connection, vault, tenant, session_id, words)
    if not matches:
        return [], count
    findings = []
    for row, said in _turns(connection, tenant, session_id, up_to):
        for index, digest in enumerate(messages_in(vault, tenant, row.id, row.messages)[:said]):
            match = next((matches[name] for name in vault.names(tenant, digest) if name in matches), None)
            if match is not None:
                findings.append(Finding(session_id, row.id, row.number, index, *match, row.asked_at, digest))
    return sorted(findings, key=lambda each: (each.number, each.index), reverse=True), count


def _matches(
    connection: Connection, vault: Vault, tenant: str, session_id: str, words: Words
) -> tuple[dict[str, tuple[str, str]], int]:
    """Role and excerpt of each message that has the words, by its name, and how many messages there are.

    A damaged one is passed over: it must not end every search of its tenant.
    """
    said = and_(turn_contents.c.tenant == tenant, turn_contents.c.session_id == session_id)
    decompressor, matches, count = zstandard.ZstdDecompressor(), dict[str, tuple[str, str]](), 0
    for name, stored in connection.execute(
        select(turn_contents.c.digest, turn_contents.c.packed).where(said)
    ):
        count += 1
        try:
            packed = decompressor.decompress(vault.open(stored, "message", tenant, name)) if stored else b""
            content = recorded(packed) if packed and words.may_be_in(packed) else {}
        except (StorageCorruptionError, zstandard.ZstdError, ValueError):
            continue
        excerpt = words.excerpt(content)
        if excerpt is not None:
            matches[name] = (str(content.get("role", "")), excerpt)
    return matches, count


def _turns(
    connection: Connection, tenant: str, session_id: str, up_to: str | None
) -> Iterator[tuple[Any, int | None]]:
    """The ended turns of the session, or those on the path to one, each with how many of its messages count (None: all)."""
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
