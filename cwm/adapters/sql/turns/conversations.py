"""Conversations of OpenAI's API in the registry's database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.responses import conversation_items, conversations
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.adapters.sql.turns.packed import compress_json, restore_json
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.domain.response import Item, StoredConversation
from cwm.domain.session import SessionsSince, SessionState

SEALED: Final = "conversation item"
"""Begins what binds a sealed item to its row."""
_CONVERSATION: Final = tuple(conversations.c[field.name] for field in fields(StoredConversation))


class SqlConversations:
    """The port ``ConversationRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database, vault: Vault = CLEAR) -> None:
        self.database = database
        self.vault = vault

    @writing
    def add(self, connection: Connection, conversation: StoredConversation, items: Sequence[Item]) -> None:
        connection.execute(insert(conversations).values(asdict(conversation)))
        self._append(connection, conversation, items)

    @glancing
    def conversation(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str
    ) -> StoredConversation | None:
        this = select(*_CONVERSATION).where(_is(tenant, owner, conversation_id))
        row = connection.execute(this).one_or_none()
        return None if row is None else StoredConversation(*row)

    @reading
    def items(self, connection: Connection, tenant: str, owner: str, conversation_id: str) -> list[Item]:
        rows = connection.execute(
            select(conversation_items)
            .where(_in(tenant, conversation_id), _owned(tenant, owner, conversation_id))
            .order_by(conversation_items.c.number)
        )
        return list(restore_json(map(self._opened, rows), conversation_id=conversation_id))

    @writing
    def change(
        self, connection: Connection, conversation: StoredConversation, items: Sequence[Item] = ()
    ) -> bool:
        values = {
            "metadata": dict(conversation.metadata),
            "touched_at": conversation.touched_at,
            "last_response": conversation.last_response,
        }
        session_id = conversation.session_id
        its = and_(sessions.c.tenant == conversation.tenant, sessions.c.id == session_id)
        lives = select(sessions.c.id).where(its, sessions.c.state != SessionState.DELETED.value)
        if session_id and connection.execute(lives.with_for_update()).first() is not None:
            values["session_id"] = session_id
        this = _is(conversation.tenant, conversation.owner, conversation.id)
        if not connection.execute(update(conversations).where(this).values(values)).rowcount:
            return False
        self._append(connection, conversation, items)
        return True

    @writing
    def remove_item(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str, item_id: str
    ) -> bool:
        this = and_(_in(tenant, conversation_id), conversation_items.c.id == item_id)
        owned = _owned(tenant, owner, conversation_id)
        if not connection.execute(delete(conversation_items).where(this, owned)).rowcount:
            return False
        changed = update(conversations).where(_is(tenant, owner, conversation_id))
        connection.execute(changed.values(last_response=None))
        return True

    @writing
    def remove(self, connection: Connection, tenant: str, owner: str, conversation_id: str) -> bool:
        this = _is(tenant, owner, conversation_id)
        return connection.execute(delete(conversations).where(this)).rowcount > 0

    @writing
    def hold(
        self,
        connection: Connection,
        tenant: str,
        owner: str,
        conversation_id: str,
        holder: str,
        instead_of: str | None = None,
    ) -> str | None:
        this, other = _is(tenant, owner, conversation_id), conversations.c.holder
        free = or_(other.is_(None), other == instead_of)
        if connection.execute(update(conversations).where(this, free).values(holder=holder)).rowcount:
            return None
        holds: str | None = connection.execute(select(other).where(this)).scalar_one_or_none()
        return holds

    @writing
    def let_go(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str, holder: str
    ) -> None:
        this = and_(_is(tenant, owner, conversation_id), conversations.c.holder == holder)
        connection.execute(update(conversations).where(this).values(holder=None))

    @reading
    def of_owner(
        self, connection: Connection, tenant: str, owner: str, after: str = "", limit: int = 100
    ) -> list[StoredConversation]:
        theirs = and_(conversations.c.tenant == tenant, conversations.c.owner == owner)
        page = select(*_CONVERSATION).where(theirs, conversations.c.id > after)
        rows = connection.execute(page.order_by(conversations.c.id).limit(limit))
        return [StoredConversation(*row) for row in rows]

    @reading
    def unused_of_every_tenant(
        self, connection: Connection, query: SessionsSince
    ) -> list[StoredConversation]:
        its = and_(sessions.c.tenant == conversations.c.tenant, sessions.c.id == conversations.c.session_id)
        lives = select(sessions.c.id).where(its, sessions.c.state != SessionState.DELETED.value).exists()
        unused = select(*_CONVERSATION).where(conversations.c.touched_at < query.since, ~lives)
        if query.tenant is not None:
            unused = unused.where(conversations.c.tenant == query.tenant)
        if query.but:
            unused = unused.where(conversations.c.tenant.not_in(query.but))
        rows = connection.execute(unused.order_by(conversations.c.touched_at).limit(query.limit))
        return [StoredConversation(*row) for row in rows]

    def _append(
        self, connection: Connection, conversation: StoredConversation, items: Sequence[Item]
    ) -> None:
        """Its row is locked."""
        if not items:
            return
        key = {"tenant": conversation.tenant, "conversation_id": conversation.id}
        last = select(func.max(conversation_items.c.number)).where(_in(*key.values()))
        rows = [
            {
                **key,
                "number": number,
                "id": item["id"],
                "packed": self.vault.seal(compress_json(dict(item)), SEALED, *key.values(), str(number)),
            }
            for number, item in enumerate(items, (connection.execute(last).scalar() or 0) + 1)
        ]
        connection.execute(insert(conversation_items), rows)

    def _opened(self, row: Row[Any]) -> bytes:
        """CWM-4004, 4005."""
        return self.vault.open(row.packed, SEALED, row.tenant, row.conversation_id, str(row.number))


def _is(tenant: str, owner: str, conversation_id: str) -> ColumnElement[bool]:
    return and_(
        conversations.c.tenant == tenant,
        conversations.c.owner == owner,
        conversations.c.id == conversation_id,
    )


def _in(tenant: str, conversation_id: str) -> ColumnElement[bool]:
    return and_(
        conversation_items.c.tenant == tenant, conversation_items.c.conversation_id == conversation_id
    )


def _owned(tenant: str, owner: str, conversation_id: str) -> ColumnElement[bool]:
    return select(conversations.c.id).where(_is(tenant, owner, conversation_id)).exists()
