"""The context of a turn: what each turn on the path to it adds, from the first to its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, Connection, Select, bindparam, literal, select

from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.turns.packed import Delta, join
from cwm.adapters.sql.turns.sealed import digest_in, messages_in
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError
from cwm.domain.prefix import TokenIds
from cwm.domain.turn import TurnState


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


class StoredTokens(NamedTuple):
    """The stored ids of a context, and how many they are."""

    deltas: Sequence[Delta]
    token_count: int
    digest: str
    session_id: str
    turn_id: str

    def join(self) -> TokenIds:
        """CWM-4004."""
        whose = {"session_id": self.session_id, "turn_id": self.turn_id}
        return join(self.deltas, self.digest.__eq__, **whose)


def tokens_of(connection: Connection, vault: Vault, tenant: str, session_id: str, turn_id: str) -> TokenIds:
    """The ids of an ended turn's context. CWM-4004."""
    return stored_tokens(connection, vault, tenant, session_id, turn_id).join()


def stored_tokens(
    connection: Connection, vault: Vault, tenant: str, session_id: str, turn_id: str
) -> StoredTokens:
    """CWM-4004."""
    rows = connection.execute(_TOKENS, {"of_tenant": tenant, "of_turn": turn_id}).all()
    if not rows:
        raise StorageCorruptionError(
            "The token ids of a turn are gone.", session_id=session_id, turn_id=turn_id
        )
    deltas = []
    count = end = rows[0].total_tokens
    for row in rows:
        size = row.total_tokens - row.parent_at
        packed = vault.open(row.packed or b"", "tokens", tenant, row.id)
        deltas.append(Delta(packed, size, end - row.parent_at))
        end = min(end, row.parent_at)
    digest = digest_in(vault, tenant, turn_id, rows[0].digest)
    return StoredTokens(deltas[::-1], count, digest, session_id, turn_id)


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
