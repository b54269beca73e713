"""The context of a turn: what each turn on the path to it adds, from the first to its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Column, Connection, Select, bindparam, literal, select

from cwm.adapters.sql.rows import at_a_time
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.turns.packed import Delta, join, restore_json
from cwm.adapters.sql.turns.sealed import digest_in, messages_in
from cwm.adapters.sql.vault import Vault
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
_TOKENS: Final = _path(turns.c.id, turns.c.parent_at, turns.c.total_tokens, turns.c.digest, turns.c.packed)
_MESSAGES: Final = _path(turns.c.id, turns.c.parent_messages, turns.c.messages)
_CONTENTS: Final = select(turn_contents.c.digest, turn_contents.c.packed).where(
    turn_contents.c.tenant == bindparam("of_tenant"),
    turn_contents.c.session_id == bindparam("of_session"),
    turn_contents.c.digest.in_(bindparam("of_digests", expanding=True)),
)


def tokens_of(connection: Connection, vault: Vault, tenant: str, session_id: str, turn_id: str) -> TokenIds:
    """The ids of an ended turn's context. CWM-4004."""
    whose = {"session_id": session_id, "turn_id": turn_id}
    rows = connection.execute(_TOKENS, {"of_tenant": tenant, "of_turn": turn_id}).all()
    if not rows:
        raise StorageCorruptionError("The token ids of a turn are gone.", **whose)
    deltas = []
    end = rows[0].total_tokens
    for row in rows:
        size = row.total_tokens - row.parent_at
        packed = vault.open(row.packed or b"", "tokens", tenant, row.id)
        deltas.append(Delta(packed, size, end - row.parent_at))
        end = min(end, row.parent_at)
    digest = digest_in(vault, tenant, turn_id, rows[0].digest)
    return join(reversed(deltas), digest.__eq__, **whose)


def digests_of(connection: Connection, vault: Vault, tenant: str, session_id: str, turn_id: str) -> list[str]:
    """The digests of the messages of an ended turn's context. CWM-4004."""
    rows = connection.execute(_MESSAGES, {"of_tenant": tenant, "of_turn": turn_id}).all()
    parts: list[list[str]] = []
    end = count = -1
    for at, row in enumerate(rows):
        messages = messages_in(vault, tenant, row.id, row.messages)
        if at == 0:
            end = count = row.parent_messages + len(messages)
        parts.append(messages[: max(end - row.parent_messages, 0)])
        end = min(end, row.parent_messages)
    digests = [digest for part in reversed(parts) for digest in part]
    if len(digests) != count:
        raise StorageCorruptionError("Messages of a turn are gone.", session_id=session_id, turn_id=turn_id)
    return digests


def messages_of(
    connection: Connection, vault: Vault, tenant: str, session_id: str, turn_id: str
) -> list[Message]:
    """The messages of an ended turn's context. CWM-4004."""
    whose = {"session_id": session_id, "turn_id": turn_id}
    digests = digests_of(connection, vault, tenant, session_id, turn_id)
    messages = {each.digest: each for each in messages_with(connection, vault, tenant, session_id, digests)}
    if not messages.keys() >= set(digests):
        raise StorageCorruptionError("A message of a turn is gone.", **whose)
    return [messages[digest] for digest in digests]


def messages_with(
    connection: Connection, vault: Vault, tenant: str, session_id: str, digests: Sequence[str]
) -> list[Message]:
    """Those of a session's messages that have these digests. CWM-4004."""
    digest_of = {name: digest for digest in set(digests) for name in vault.names(tenant, digest)}
    messages: list[Message] = []
    for batch in at_a_time(sorted(digest_of)):
        which = {"of_tenant": tenant, "of_session": session_id, "of_digests": batch}
        rows = connection.execute(_CONTENTS, which).all()
        packed = (vault.open(row.packed, "message", tenant, row.digest) for row in rows)
        contents = restore_json(packed, session_id=session_id)
        messages += map(Message, (digest_of[row.digest] for row in rows), contents)
    return messages


def asked_in(
    connection: Connection, vault: Vault, tenant: str, turn_ids: Sequence[str]
) -> dict[str, Message]:
    """See the port. An answer is the last message of its turn; what was asked stands before it."""
    wanted: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for batch in at_a_time(sorted(turn_ids)):
        these = select(turns.c.id, turns.c.session_id, turns.c.messages).where(
            turns.c.tenant == tenant, turns.c.id.in_(batch), turns.c.state == TurnState.ENDED.value
        )
        for row in connection.execute(these):
            with suppress(StorageCorruptionError):
                if digests := messages_in(vault, tenant, row.id, row.messages)[-2:]:
                    wanted[row.session_id][row.id] = digests[0]
    asked: dict[str, Message] = {}
    for session_id, digest_of in wanted.items():
        with suppress(StorageCorruptionError):
            read = messages_with(connection, vault, tenant, session_id, list(digest_of.values()))
            by_digest = {message.digest: message for message in read}
            asked |= {turn_id: by_digest[each] for turn_id, each in digest_of.items() if each in by_digest}
    return asked
