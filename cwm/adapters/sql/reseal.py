"""Seals what the registry holds with the vault's first key: what was stored in the clear, or with an older key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, and_, delete, select, tuple_, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry import snapshots as stored
from cwm.adapters.sql.registry.sessions import head_of
from cwm.adapters.sql.rows import TURN, insert_into, turn_of, turn_values
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.responses import conversation_items, conversations, responses
from cwm.adapters.sql.tables.sessions import canaries, sessions, snapshots
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import reading, writing
from cwm.adapters.sql.turns import conversations as of_conversations
from cwm.adapters.sql.turns.paths import tokens_of
from cwm.adapters.sql.turns.responses import SEALED, SEALED_ITEMS
from cwm.adapters.sql.turns.sealed import keys_in, messages_in, opened_turn, sealed_turn
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import StorageCorruptionError

_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Reseal:
    """Each session, snapshot, response and conversation in a transaction of its own, so that a run may be stopped and repeated at any time."""

    database: Database
    vault: Vault

    async def __call__(self) -> AsyncIterator[str]:
        """Yields ``session``, ``snapshot``, ``response`` or ``conversation`` for each one that was not as the vault would store it. CWM-4001, 4002, 4005.

        ``damaged`` stands for one that cannot be read, and stays as it is.
        """
        for noun, column, seal in (
            ("session", sessions.c.id, self._seal_session),
            ("snapshot", snapshots.c.id, self._seal_snapshot),
            ("response", responses.c.id, self._seal_response),
            ("conversation", conversations.c.id, self._seal_conversation),
        ):
            keys: list[tuple[str, str]] = [("", "")]
            while keys := await self._keys_of_every_tenant(column, keys[-1]):
                for key in keys:
                    try:
                        if await seal(*key):
                            yield noun
                    except StorageCorruptionError:
                        yield "damaged"

    @reading
    def _keys_of_every_tenant(
        self, connection: Connection, column: Column[Any], after: tuple[str, str]
    ) -> list[tuple[str, str]]:
        key = tuple_(column.table.c.tenant, column)
        page = (
            select(column.table.c.tenant, column).where(key > after).order_by(column.table.c.tenant, column)
        )
        return [(row[0], row[1]) for row in connection.execute(page.limit(_AT_ONCE))]

    @writing
    def _seal_session(self, connection: Connection, tenant: str, session_id: str) -> bool:
        this = and_(sessions.c.tenant == tenant, sessions.c.id == session_id)
        connection.execute(select(sessions.c.id).where(this).with_for_update())
        mine = and_(turns.c.tenant == tenant, turns.c.session_id == session_id)
        rows: Sequence[Any] = connection.execute(
            select(
                *TURN, turns.c.head, turns.c.messages, turns.c.packed, turns.c.title, turns.c.sealed_keys
            ).where(mine)
        ).all()
        changed, digests = False, set[str]()
        for row in rows:
            said = messages_in(self.vault, tenant, row.id, row.messages)
            digests.update(said)
            if not all(map(self.vault.is_current, _sealed_columns(row))):
                changed = True
                head = row.head
                if head and "." in head:
                    head = head_of(tokens_of(connection, self.vault, tenant, session_id, row.id))
                packed = self.vault.open(row.packed or b"", "tokens", tenant, row.id) or None
                values = turn_values(opened_turn(self.vault, turn_of(row)))
                title = self.vault.open(row.title or b"", "title", tenant, row.id) or None
                values |= {"head": head, "messages": said, "packed": packed, "title": title}
                values |= {"sealed_keys": None, **keys_in(self.vault, row)}
                sealed = sealed_turn(self.vault, values)
                connection.execute(update(turns).where(mine, turns.c.id == row.id).values(sealed))
        if changed:
            current = turns.c.id == sessions.c.current_turn
            head = select(turns.c.head).where(turns.c.tenant == tenant, current).scalar_subquery()
            connection.execute(update(sessions).where(this, sessions.c.head.is_not(None)).values(head=head))
        return self._seal_messages(connection, tenant, session_id, digests) or changed

    def _seal_messages(
        self, connection: Connection, tenant: str, session_id: str, digests: Iterable[str]
    ) -> bool:
        row_key = {"tenant": tenant, "session_id": session_id}
        digest_of = {name: digest for digest in digests for name in self.vault.names(tenant, digest)}
        mine = and_(turn_contents.c.tenant == tenant, turn_contents.c.session_id == session_id)
        changed = False
        for row in connection.execute(select(turn_contents).where(mine)).all():
            if row.digest not in digest_of or all(map(self.vault.is_current, (row.digest, row.packed))):
                continue
            changed = True
            name = self.vault.name(tenant, digest_of[row.digest])
            content = self.vault.open(row.packed, "message", tenant, row.digest)
            connection.execute(delete(turn_contents).where(mine, turn_contents.c.digest == row.digest))
            values = {
                **row_key,
                "digest": name,
                "packed": self.vault.seal(content, "message", tenant, name),
                "weight": row.weight,
            }
            connection.execute(insert_into(connection, turn_contents).values(values).on_conflict_do_nothing())
        return changed

    @writing
    def _seal_snapshot(self, connection: Connection, tenant: str, snapshot_id: str) -> bool:
        if self.vault.is_current(snapshot_id):
            return False
        stored.lock(connection, tenant, snapshot_id)
        token_ids = stored.read(connection, tenant, snapshot_id, self.vault).token_ids
        new_id = stored.keep(connection, tenant, token_ids, self.vault)
        for table in (windows, intents):
            its = and_(table.c.tenant == tenant, table.c.snapshot_id == snapshot_id)
            connection.execute(update(table).where(its).values(snapshot_id=new_id))
        its = and_(canaries.c.tenant == tenant, canaries.c.snapshot_id == snapshot_id)
        for row in connection.execute(select(canaries).where(its)).all():
            content = stored.canary_content(row.content, self.vault, tenant, snapshot_id, row.cache_salt)
            key = (tenant, new_id, row.cache_salt)
            stored.put_canary_content(connection, key, content, row.origin, self.vault)
        connection.execute(
            delete(snapshots).where(snapshots.c.tenant == tenant, snapshots.c.id == snapshot_id)
        )
        return True

    @writing
    def _seal_response(self, connection: Connection, tenant: str, response_id: str) -> bool:
        this = and_(responses.c.tenant == tenant, responses.c.id == response_id)
        row = connection.execute(select(responses.c.packed, responses.c.asked).where(this)).one_or_none()
        if row is None or all(map(self.vault.is_current, filter(None, row))):
            return False
        sealed = {
            name: stored and self.vault.seal(self.vault.open(stored, *bound), *bound)
            for name, stored, noun in (("packed", row.packed, SEALED), ("asked", row.asked, SEALED_ITEMS))
            for bound in [(noun, tenant, response_id)]
        }
        connection.execute(update(responses).where(this).values(sealed))
        return True

    @writing
    def _seal_conversation(self, connection: Connection, tenant: str, conversation_id: str) -> bool:
        items = conversation_items.c
        its = and_(items.tenant == tenant, items.conversation_id == conversation_id)
        rows = connection.execute(select(items.number, items.packed).where(its)).all()
        old = [row for row in rows if not self.vault.is_current(row.packed)]
        for row in old:
            bound = (of_conversations.SEALED, tenant, conversation_id, str(row.number))
            sealed = self.vault.seal(self.vault.open(row.packed, *bound), *bound)
            connection.execute(
                update(conversation_items).where(its, items.number == row.number).values(packed=sealed)
            )
        return bool(old)


def _sealed_columns(row: Any) -> list[bytes | str]:
    """Of an ended turn; an awaited one has only its digests."""
    columns = [
        row.digest,
        *filter(None, (row.head, row.chain, row.packed, row.title, row.calls, row.core_chain)),
    ]
    if row.messages:
        columns.append(row.messages if isinstance(row.messages, str) else "")
    return columns
