"""What was said: copied to a session that begins where a turn ends, and kept for windows and tags when their session goes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, literal, or_, select

from cwm.adapters.sql.rows import TURN, at_a_time, turn_of
from cwm.adapters.sql.tables.responses import conversations, responses
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_contents, turn_tags, turns
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.turns.paths import digests_of
from cwm.adapters.sql.turns.sealed import keys_in, messages_in, opened_turn
from cwm.adapters.sql.turns.stored_bytes import count_again
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError, StorageKeyError
from cwm.domain.session import Session, SessionState


def said_in(connection: Connection, vault: Vault, tenant: str, source_turn: str) -> dict[str, Any]:
    """The columns of a first turn that say what was said in the turn it was copied from; none if that is gone."""
    row: Any = connection.execute(
        select(*TURN, turns.c.title, turns.c.sealed_keys).where(
            turns.c.tenant == tenant, turns.c.id == source_turn
        )
    ).one_or_none()
    if row is not None:
        with suppress(StorageCorruptionError):
            turn = opened_turn(vault, turn_of(row))
            keys = {} if turn.abandoned else {"chain": turn.chain, **keys_in(vault, row)}
            return {
                **asdict(turn.profile),
                **keys,
                "title": row.title and vault.open(row.title, "title", tenant, source_turn),
                "messages": digests_of(connection, vault, tenant, turn.session_id, source_turn),
            }
    return {}


def copy_messages(
    connection: Connection, vault: Vault, session: Session, source_turn: str | None, digests: Sequence[str]
) -> None:
    """Give the session its own copy of these messages of a turn's session."""
    origin = select(turns.c.session_id).where(turns.c.tenant == session.tenant, turns.c.id == source_turn)
    names = {name for digest in digests for name in vault.names(session.tenant, digest)}
    for batch in at_a_time(sorted(names)):
        copies = select(
            turn_contents.c.tenant,
            literal(session.id),
            turn_contents.c.digest,
            turn_contents.c.packed,
            turn_contents.c.weight,
        ).where(
            turn_contents.c.tenant == session.tenant,
            turn_contents.c.session_id == origin.scalar_subquery(),
            turn_contents.c.digest.in_(batch),
        )
        connection.execute(insert(turn_contents).from_select(turn_contents.c.keys(), copies))


def locked(connection: Connection, tenant: str, session_id: str) -> str | None:
    """The state of the session, whose row is locked until the commit; None if there is none."""
    state = select(sessions.c.state).where(sessions.c.tenant == tenant, sessions.c.id == session_id)
    return connection.execute(state.with_for_update()).scalar_one_or_none()


def forget_automatic_tags(connection: Connection, tenant: str, session_id: str) -> None:
    """Tags are locked before sessions: so they go before a session is changed."""
    mine = and_(turn_tags.c.tenant == tenant, turn_tags.c.session_id == session_id)
    connection.execute(delete(turn_tags).where(mine, turn_tags.c.automatic))


def forget_deleted(connection: Connection, vault: Vault, tenant: str, session_id: str) -> None:
    """Of a deleted session, remove the turns that no window and no tag consists of, and its row with the last of those."""
    if locked(connection, tenant, session_id) != SessionState.DELETED.value:
        return
    _remove_turns(connection, vault, tenant, session_id)
    referred = [
        select(table.c.name).where(table.c.tenant == tenant, table.c.session_id == session_id).exists()
        for table in (windows, turn_tags)
    ]
    this = and_(sessions.c.tenant == tenant, sessions.c.id == session_id)
    connection.execute(delete(sessions).where(this, ~or_(*referred)))


def _remove_turns(connection: Connection, vault: Vault, tenant: str, session_id: str) -> None:
    mine = and_(turns.c.tenant == tenant, turns.c.session_id == session_id)
    rows = {row.id: row for row in connection.execute(select(turns.c.id, turns.c.parent).where(mine))}
    transcript: set[str] = set()
    for table in (windows, turn_tags):
        turn_ids = select(table.c.turn_id).where(table.c.tenant == tenant, table.c.session_id == session_id)
        for turn_id in connection.execute(turn_ids).scalars():
            row = rows.get(turn_id)
            while row is not None and row.id not in transcript:
                transcript.add(row.id)
                row = rows.get(row.parent)
    for table in (responses, conversations):
        theirs = and_(table.c.tenant == tenant, table.c.session_id == session_id)
        connection.execute(delete(table).where(theirs))
    for batch in at_a_time(sorted(rows.keys() - transcript)):
        connection.execute(delete(turns).where(mine, turns.c.id.in_(batch)))
    remove_unsaid(connection, vault, tenant, session_id)


def remove_unsaid(connection: Connection, vault: Vault, tenant: str, session_id: str) -> None:
    """Remove the messages of a session that no turn of it refers to any more, and count what is left."""
    _remove_unsaid(connection, vault, tenant, session_id)
    count_again(connection, tenant, session_id)


def _remove_unsaid(connection: Connection, vault: Vault, tenant: str, session_id: str) -> None:
    mine = and_(turns.c.tenant == tenant, turns.c.session_id == session_id)
    try:
        names = {
            name
            for row in connection.execute(select(turns.c.id, turns.c.messages).where(mine))
            for digest in messages_in(vault, tenant, row.id, row.messages)
            for name in vault.names(tenant, digest)
        }
    except StorageKeyError:
        # They go with the last turn: a deletion needs no key.
        return
    said = and_(turn_contents.c.tenant == tenant, turn_contents.c.session_id == session_id)
    stored = set(connection.execute(select(turn_contents.c.digest).where(said)).scalars())
    for batch in at_a_time(sorted(stored - names)):
        connection.execute(delete(turn_contents).where(said, turn_contents.c.digest.in_(batch)))
