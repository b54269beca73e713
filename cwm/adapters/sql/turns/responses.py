"""Responses in the registry's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, false, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import at_a_time, insert_into
from cwm.adapters.sql.tables.responses import response_items, responses
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.adapters.sql.turns.packed import Packed, pack_json, unpack_json, weight_in
from cwm.adapters.sql.turns.transcripts import locked
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.domain.json_text import is_long
from cwm.domain.response import Item, LineEntry, StoredResponse
from cwm.domain.weight import MOST_AT_ONCE, Room
from cwm.threads import aside

SEALED: Final = "response"
SEALED_ITEMS: Final = "response items"
"""They begin what binds a sealed response, and the items of its request, to its row."""


class SqlResponses:
    """The port ``ResponseRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database, vault: Vault = CLEAR) -> None:
        self.database = database
        self.vault = vault

    async def keep(self, response: StoredResponse) -> bool:
        large = is_long(response.items) or is_long(response.content)
        content, items = await aside(
            MOST_AT_ONCE if large else 0,
            lambda: (pack_json(dict(response.content)), pack_json(list(response.items))),
        )
        return await self._keep(response, content, items)

    @writing
    def _keep(self, connection: Connection, response: StoredResponse, content: Packed, items: Packed) -> bool:
        # Whoever removes turns locks their session first, too.
        locked(connection, response.tenant, response.session_id)
        turn = and_(turns.c.tenant == response.tenant, turns.c.id == response.turn_id)
        if connection.execute(select(turns.c.id).where(turn)).scalar_one_or_none() is None:
            return False
        key = {"tenant": response.tenant, "id": response.id}
        sealed = {
            "packed": self.vault.seal(content.stored, SEALED, *key.values()),
            "asked": self.vault.seal(items.stored, SEALED_ITEMS, *key.values()),
        }
        connection.execute(
            insert_into(connection, responses).values(
                **key,
                owner=response.owner,
                session_id=response.session_id,
                turn_id=response.turn_id,
                created_at=response.created_at,
                previous=response.previous,
                hidden=False,
                weight=content.weight,
                asked_weight=items.weight,
                **sealed,
            )
        )
        rows = [
            {"tenant": response.tenant, "id": item_id, "response_id": response.id}
            for item_id in dict.fromkeys(item.get("id") for item in response.output)
            if isinstance(item_id, str)
        ]
        if rows:
            connection.execute(insert_into(connection, response_items), rows)
        its = and_(sessions.c.tenant == response.tenant, sessions.c.id == response.session_id)
        grown = sessions.c.stored_bytes + sum(map(len, sealed.values()))
        connection.execute(update(sessions).where(its).values(stored_bytes=grown))
        return True

    async def response(self, tenant: str, owner: str, response_id: str) -> StoredResponse | None:
        row = await self._row(tenant, owner, response_id)
        return None if row is None or row.hidden else await self._unpacked(row, Room())

    async def in_line(
        self, tenant: str, owner: str, response_ids: Sequence[str], most: int = MOST_AT_ONCE
    ) -> list[StoredResponse]:
        rows = await self._rows(tenant, owner, response_ids)
        room = Room(most)
        return await aside(
            sum(_weight(row) for row in rows),
            lambda: [self._response(row, room, with_items=True) for row in rows],
        )

    @glancing
    def is_found(self, connection: Connection, tenant: str, owner: str, response_id: str) -> bool:
        this = and_(_theirs(tenant, owner), responses.c.id == response_id, responses.c.hidden == false())
        return connection.execute(select(responses.c.id).where(this)).one_or_none() is not None

    @reading
    def _rows(
        self, connection: Connection, tenant: str, owner: str, response_ids: Sequence[str]
    ) -> list[Row[Any]]:
        by_id = {
            row.id: row
            for batch in at_a_time(response_ids)
            for row in connection.execute(
                select(responses).where(_theirs(tenant, owner), responses.c.id.in_(batch))
            )
        }
        return [by_id[each] for each in response_ids if each in by_id]

    @reading
    def _row(self, connection: Connection, tenant: str, owner: str, response_id: str) -> Row[Any] | None:
        this = and_(_theirs(tenant, owner), responses.c.id == response_id)
        return connection.execute(select(responses).where(this)).one_or_none()

    async def line(self, tenant: str, owner: str, response_id: str) -> list[LineEntry]:
        entries: list[LineEntry] = []
        for row in await self._line(tenant, owner, response_id):
            weight = row.weight
            if weight is None:
                # It is from before there were weights.
                weight = await self._weighed(tenant, owner, row.id)
            entries.append(LineEntry(row.id, row.session_id, weight + (row.asked_weight or 0)))
        return entries

    @reading
    def _line(self, connection: Connection, tenant: str, owner: str, response_id: str) -> list[Row[Any]]:
        columns = select(
            responses.c.id,
            responses.c.previous,
            responses.c.session_id,
            responses.c.weight,
            responses.c.asked_weight,
        )
        this = and_(_theirs(tenant, owner), responses.c.id == response_id, responses.c.hidden == false())
        line = columns.where(this).cte("line", recursive=True)
        before = columns.where(_theirs(tenant, owner), responses.c.id == line.c.previous)
        line = line.union_all(before)
        by_id = {row.id: row for row in connection.execute(select(*line.c))}
        rows: list[Row[Any]] = []
        at: str | None = response_id
        while at is not None:
            row = by_id.get(at)
            if row is None:
                return []
            rows.append(row)
            at = row.previous
        return rows[::-1]

    async def _weighed(self, tenant: str, owner: str, response_id: str) -> int:
        row = await self._row(tenant, owner, response_id)
        if row is None:
            return 0
        key = (tenant, response_id)
        weight = await aside(MOST_AT_ONCE, lambda: weight_in(self.vault.open(row.packed, SEALED, *key)))
        await self._weigh(tenant, owner, response_id, weight)
        return weight

    @writing
    def _weigh(self, connection: Connection, tenant: str, owner: str, response_id: str, weight: int) -> None:
        this = and_(_theirs(tenant, owner), responses.c.id == response_id)
        connection.execute(update(responses).where(this).values(weight=weight))

    async def items(
        self, tenant: str, owner: str, item_ids: Sequence[str], most: int = MOST_AT_ONCE
    ) -> Mapping[str, Item]:
        wanted, found, room = set(item_ids), dict[str, Item](), Room(most)
        for response_id in await self._with_items(tenant, owner, sorted(wanted)):
            row = await self._row(tenant, owner, response_id)
            if row is not None and not row.hidden:
                response = await self._unpacked(row, room)
                found |= {item["id"]: item for item in response.output if item.get("id") in wanted}
        return found

    @reading
    def _with_items(
        self, connection: Connection, tenant: str, owner: str, item_ids: Sequence[str]
    ) -> list[str]:
        """The ids of the responses that have these items: of each item the newest one."""
        newest: dict[str, tuple[datetime, str]] = {}
        for batch in at_a_time(item_ids):
            its = and_(
                responses.c.tenant == response_items.c.tenant,
                responses.c.id == response_items.c.response_id,
            )
            rows = connection.execute(
                select(response_items.c.id.label("item_id"), responses.c.created_at, responses.c.id)
                .join(responses, its)
                .where(
                    response_items.c.tenant == tenant,
                    response_items.c.id.in_(batch),
                    _theirs(tenant, owner),
                    responses.c.hidden == false(),
                )
            )
            for row in rows:
                each = (row.created_at, row.id)
                newest[row.item_id] = max(newest.get(row.item_id, each), each)
        return list(dict.fromkeys(response_id for _, response_id in newest.values()))

    @reading
    def ids_of_owner(
        self, connection: Connection, tenant: str, owner: str, after: str = "", limit: int = 100
    ) -> list[str]:
        page = select(responses.c.id).where(_theirs(tenant, owner), responses.c.id > after)
        return list(connection.execute(page.order_by(responses.c.id).limit(limit)).scalars())

    @writing
    def hide(self, connection: Connection, tenant: str, owner: str, response_id: str) -> bool:
        this = and_(_theirs(tenant, owner), responses.c.id == response_id, responses.c.hidden == false())
        return connection.execute(update(responses).where(this).values(hidden=True)).rowcount > 0

    async def _unpacked(self, row: Row[Any], room: Room) -> StoredResponse:
        """Without the items of its request. CWM-4004, 4005, 4006."""
        return await aside(_weight(row), lambda: self._response(row, room, with_items=False))

    def _response(self, row: Row[Any], room: Room, *, with_items: bool) -> StoredResponse:
        key = (row.tenant, row.id)
        opened = self.vault.open(row.packed, SEALED, *key)
        content = unpack_json(opened, row.weight, room, response_id=row.id)
        items: Sequence[Item] = ()
        if row.asked is None:
            # It is from before there were weights, which has both in one.
            items, content = content["items"], content["content"]
        elif with_items:
            opened = self.vault.open(row.asked, SEALED_ITEMS, *key)
            items = unpack_json(opened, row.asked_weight, room, response_id=row.id) or ()
        return StoredResponse(
            row.tenant,
            row.id,
            row.owner,
            row.session_id,
            row.turn_id,
            row.created_at,
            items,
            content,
            row.previous,
        )


def _weight(row: Row[Any]) -> int:
    return MOST_AT_ONCE if row.weight is None else int(row.weight + (row.asked_weight or 0))


def _theirs(tenant: str, owner: str) -> ColumnElement[bool]:
    return and_(responses.c.tenant == tenant, responses.c.owner == owner)
