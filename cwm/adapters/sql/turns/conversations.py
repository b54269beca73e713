"""Conversations of OpenAI's API in the registry's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import at_a_time
from cwm.adapters.sql.tables.responses import conversation_items, conversations
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.adapters.sql.turns.packed import Packed, pack_json, unpack_json, weight_in
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.domain.errors import StoredTooLargeError
from cwm.domain.json_text import is_long
from cwm.domain.response import Item, ItemPage, ItemQuery, ItemSum, StoredConversation
from cwm.domain.session import SessionsSince, SessionState
from cwm.domain.weight import MOST_AT_ONCE, Room
from cwm.threads import aside

SEALED: Final = "conversation item"
"""Begins what binds a sealed item to its row."""
_CONVERSATION: Final = tuple(conversations.c[field.name] for field in fields(StoredConversation))


class SqlConversations:
    """The port ``ConversationRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database, vault: Vault = CLEAR) -> None:
        self.database = database
        self.vault = vault

    async def add(self, conversation: StoredConversation, items: Sequence[Item]) -> None:
        await self._add(conversation, await self._packed(items))

    @writing
    def _add(
        self, connection: Connection, conversation: StoredConversation, packed: Mapping[str, Packed]
    ) -> None:
        connection.execute(insert(conversations).values(**asdict(conversation), weight=0))
        self._append(connection, conversation, packed)

    @glancing
    def conversation(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str
    ) -> StoredConversation | None:
        this = select(*_CONVERSATION).where(_is(tenant, owner, conversation_id))
        row = connection.execute(this).one_or_none()
        return None if row is None else StoredConversation(*row)

    async def items(
        self, tenant: str, owner: str, conversation_id: str, most: int = MOST_AT_ONCE
    ) -> list[Item]:
        total = await self.sum(tenant, owner, conversation_id)
        Room(most).take(total.weight)
        rows = await self._rows(tenant, owner, conversation_id)

        def unpack() -> list[Item]:
            # Others may have appended to it meanwhile.
            room = Room(2 * most)
            return [self._unpacked(row, room) for row in rows]

        return await aside(total.weight, unpack)

    async def page(self, tenant: str, owner: str, conversation_id: str, query: ItemQuery) -> ItemPage | None:
        found = await self._page(tenant, owner, conversation_id, query)
        if found is None:
            return None
        rows, has_more = found

        def unpack() -> ItemPage:
            items, room = list[Item](), Room()
            for row in rows:
                try:
                    items.append(self._unpacked(row, room))
                except StoredTooLargeError:
                    if not items:
                        raise
                    return ItemPage(items, has_more=True, weight=room.taken)
            return ItemPage(items, has_more, room.taken)

        return await aside(sum(row.weight or MOST_AT_ONCE for row in rows), unpack)

    async def item(self, tenant: str, owner: str, conversation_id: str, item_id: str) -> Item | None:
        row = await self._row(tenant, owner, conversation_id, item_id)
        if row is None:
            return None
        return await aside(row.weight or MOST_AT_ONCE, lambda: self._unpacked(row, Room()))

    @reading
    def ids_among(
        self,
        connection: Connection,
        tenant: str,
        owner: str,
        conversation_id: str,
        item_ids: Sequence[str],
    ) -> set[str]:
        here = and_(_in(tenant, conversation_id), _owned(tenant, owner, conversation_id))
        return {
            item_id
            for batch in at_a_time(item_ids)
            for item_id in connection.execute(
                select(conversation_items.c.id).where(here, conversation_items.c.id.in_(batch))
            ).scalars()
        }

    async def sum(self, tenant: str, owner: str, conversation_id: str) -> ItemSum:
        count, weight = await self._sum(tenant, owner, conversation_id)
        if weight is None:
            # It is from before there were weights.
            for row in await self._unweighed(tenant, owner, conversation_id):
                stored = await self._stored(tenant, conversation_id, row.number)
                await self._weigh(tenant, conversation_id, row.number, await self._weight(stored))
            count, weight = await self._weighed(tenant, owner, conversation_id)
        return ItemSum(count, weight or 0)

    async def _weight(self, row: Row[Any] | None) -> int:
        if row is None:
            return 0
        return await aside(len(row.packed), lambda: weight_in(self._opened(row)))

    @glancing
    def _sum(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str
    ) -> tuple[int, int | None]:
        columns = select(conversations.c.item_count, conversations.c.weight)
        row = connection.execute(columns.where(_is(tenant, owner, conversation_id))).one_or_none()
        return (0, 0) if row is None else (row.item_count, row.weight)

    @reading
    def _unweighed(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str
    ) -> Sequence[Row[Any]]:
        items = select(conversation_items.c.number).where(
            _in(tenant, conversation_id),
            _owned(tenant, owner, conversation_id),
            conversation_items.c.weight.is_(None),
        )
        return connection.execute(items).all()

    @reading
    def _stored(
        self, connection: Connection, tenant: str, conversation_id: str, number: int
    ) -> Row[Any] | None:
        this = and_(_in(tenant, conversation_id), conversation_items.c.number == number)
        return connection.execute(select(conversation_items).where(this)).one_or_none()

    @writing
    def _weigh(
        self, connection: Connection, tenant: str, conversation_id: str, number: int, weight: int
    ) -> None:
        this = and_(_in(tenant, conversation_id), conversation_items.c.number == number)
        connection.execute(update(conversation_items).where(this).values(weight=weight))

    @writing
    def _weighed(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str
    ) -> tuple[int, int | None]:
        # A gateway of such a version may have counted nothing.
        count, weight = (
            select(each).where(_in(tenant, conversation_id)).scalar_subquery()
            for each in (func.count(), func.coalesce(func.sum(conversation_items.c.weight), 0))
        )
        weighed = update(conversations).where(_is(tenant, owner, conversation_id))
        row = connection.execute(
            weighed.values(item_count=count, weight=weight).returning(
                conversations.c.item_count, conversations.c.weight
            )
        ).one_or_none()
        return (0, 0) if row is None else (row.item_count, row.weight)

    @reading
    def _rows(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str
    ) -> Sequence[Row[Any]]:
        here = and_(_in(tenant, conversation_id), _owned(tenant, owner, conversation_id))
        return connection.execute(
            select(conversation_items).where(here).order_by(conversation_items.c.number)
        ).all()

    @reading
    def _row(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str, item_id: str
    ) -> Row[Any] | None:
        here = and_(_in(tenant, conversation_id), _owned(tenant, owner, conversation_id))
        this = select(conversation_items).where(here, conversation_items.c.id == item_id)
        return connection.execute(this.limit(1)).one_or_none()

    @reading
    def _page(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Sequence[Row[Any]], bool] | None:
        """The rows that fit into a page by their weights, or else by what they take on the disk; and whether there are more."""
        number = conversation_items.c.number
        here = and_(_in(tenant, conversation_id), _owned(tenant, owner, conversation_id))
        order = number.desc() if query.descending else number
        if query.after is not None:
            this = select(number).where(here, conversation_items.c.id == query.after)
            after = connection.execute(this.limit(1)).scalar_one_or_none()
            if after is None:
                return None
            here = and_(here, number < after if query.descending else number > after)
        weight = func.coalesce(conversation_items.c.weight, func.length(conversation_items.c.packed))
        sizes = connection.execute(
            select(number, weight.label("size")).where(here).order_by(order).limit(query.limit + 1)
        ).all()
        numbers, room = list[int](), Room()
        for row in sizes[: query.limit]:
            if numbers and not room.has(row.size):
                break
            numbers.append(row.number)
            room.left -= row.size
        rows = connection.execute(
            select(conversation_items).where(here, number.in_(numbers)).order_by(order)
        ).all()
        return rows, len(sizes) > len(numbers)

    async def change(self, conversation: StoredConversation, items: Sequence[Item] = ()) -> bool:
        return await self._change(conversation, await self._packed(items))

    @writing
    def _change(
        self, connection: Connection, conversation: StoredConversation, packed: Mapping[str, Packed]
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
        self._append(connection, conversation, packed)
        return True

    @writing
    def remove_item(
        self, connection: Connection, tenant: str, owner: str, conversation_id: str, item_id: str
    ) -> bool:
        this = and_(_in(tenant, conversation_id), conversation_items.c.id == item_id)
        owned = _owned(tenant, owner, conversation_id)
        removed = connection.execute(
            delete(conversation_items)
            .where(this, owned)
            .returning(func.length(conversation_items.c.packed).label("size"), conversation_items.c.weight)
        ).all()
        if not removed:
            return False
        changed = update(conversations).where(_is(tenant, owner, conversation_id))
        connection.execute(
            changed.values(
                last_response=None,
                item_count=conversations.c.item_count - len(removed),
                stored_bytes=conversations.c.stored_bytes - sum(row.size for row in removed),
                weight=conversations.c.weight - sum(row.weight or 0 for row in removed),
            )
        )
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

    async def _packed(self, items: Sequence[Item]) -> dict[str, Packed]:
        """By id, in their order."""
        size = MOST_AT_ONCE if any(map(is_long, items)) else 0
        return await aside(size, lambda: {item["id"]: pack_json(dict(item)) for item in items})

    def _append(
        self, connection: Connection, conversation: StoredConversation, packed: Mapping[str, Packed]
    ) -> None:
        """Its row is locked."""
        if not packed:
            return
        key = {"tenant": conversation.tenant, "conversation_id": conversation.id}
        last = select(func.max(conversation_items.c.number)).where(_in(*key.values()))
        rows: list[dict[str, Any]] = [
            {
                **key,
                "number": number,
                "id": item_id,
                "packed": self.vault.seal(each.stored, SEALED, *key.values(), str(number)),
                "weight": each.weight,
            }
            for number, (item_id, each) in enumerate(
                packed.items(), (connection.execute(last).scalar() or 0) + 1
            )
        ]
        connection.execute(insert(conversation_items), rows)
        grown = update(conversations).where(_is(conversation.tenant, conversation.owner, conversation.id))
        connection.execute(
            grown.values(
                item_count=conversations.c.item_count + len(rows),
                stored_bytes=conversations.c.stored_bytes + sum(len(row["packed"]) for row in rows),
                weight=conversations.c.weight + sum(row["weight"] for row in rows),
            )
        )

    def _unpacked(self, row: Row[Any], room: Room) -> Item:
        """CWM-4004, 4005, 4006."""
        whose = {"conversation_id": row.conversation_id}
        item: Item = unpack_json(self._opened(row), row.weight, room, **whose)
        return item

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
