"""Responses in the registry's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, false, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import at_a_time, insert_into
from cwm.adapters.sql.tables.responses import response_items, responses
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.adapters.sql.turns.packed import compress_json, restore_json
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.domain.response import Item, StoredResponse

SEALED: Final = "response"
"""Begins what binds a sealed response to its row."""


class SqlResponses:
    """The port ``ResponseRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database, vault: Vault = CLEAR) -> None:
        self.database = database
        self.vault = vault

    @writing
    def keep(self, connection: Connection, response: StoredResponse) -> bool:
        turn = and_(turns.c.tenant == response.tenant, turns.c.id == response.turn_id)
        if connection.execute(select(turns.c.id).where(turn)).scalar_one_or_none() is None:
            return False
        key = {"tenant": response.tenant, "id": response.id}
        content = compress_json({"items": list(response.items), "content": dict(response.content)})
        connection.execute(
            insert_into(connection, responses).values(
                **key,
                owner=response.owner,
                session_id=response.session_id,
                turn_id=response.turn_id,
                created_at=response.created_at,
                previous=response.previous,
                hidden=False,
                packed=self.vault.seal(content, SEALED, *key.values()),
            )
        )
        rows = [
            {"tenant": response.tenant, "id": item_id, "response_id": response.id}
            for item_id in dict.fromkeys(item.get("id") for item in response.output)
            if isinstance(item_id, str)
        ]
        if rows:
            connection.execute(insert_into(connection, response_items), rows)
        return True

    @glancing
    def response(
        self, connection: Connection, tenant: str, owner: str, response_id: str
    ) -> StoredResponse | None:
        this = and_(_theirs(tenant, owner), responses.c.id == response_id, responses.c.hidden == false())
        row = connection.execute(select(responses).where(this)).one_or_none()
        return None if row is None else self._response(row)

    @glancing
    def is_found(self, connection: Connection, tenant: str, owner: str, response_id: str) -> bool:
        this = and_(_theirs(tenant, owner), responses.c.id == response_id, responses.c.hidden == false())
        return connection.execute(select(responses.c.id).where(this)).one_or_none() is not None

    @reading
    def line(self, connection: Connection, tenant: str, owner: str, response_id: str) -> list[StoredResponse]:
        columns = select(responses.c.id, responses.c.previous)
        this = and_(_theirs(tenant, owner), responses.c.id == response_id, responses.c.hidden == false())
        line = columns.where(this).cte("line", recursive=True)
        before = columns.where(_theirs(tenant, owner), responses.c.id == line.c.previous)
        line = line.union_all(before)
        previous: dict[str, str | None] = {
            row.id: row.previous for row in connection.execute(select(line.c.id, line.c.previous))
        }
        ids: list[str] = []
        at: str | None = response_id
        while at is not None:
            if at not in previous:
                return []
            ids.append(at)
            at = previous[at]
        found = {
            row.id: self._response(row)
            for batch in at_a_time(ids)
            for row in connection.execute(
                select(responses).where(_theirs(tenant, owner), responses.c.id.in_(batch))
            )
        }
        return [found[each] for each in reversed(ids)]

    @reading
    def items(
        self, connection: Connection, tenant: str, owner: str, item_ids: Sequence[str]
    ) -> Mapping[str, Item]:
        found: dict[str, Item] = {}
        for batch in at_a_time(list(dict.fromkeys(item_ids))):
            those = and_(response_items.c.tenant == tenant, response_items.c.id.in_(batch))
            ids = select(response_items.c.response_id).where(those)
            rows = connection.execute(
                select(responses).where(
                    _theirs(tenant, owner), responses.c.id.in_(ids), responses.c.hidden == false()
                )
            )
            for row in rows:
                found |= {item["id"]: item for item in self._response(row).output if item.get("id") in batch}
        return found

    @reading
    def of_owner(
        self, connection: Connection, tenant: str, owner: str, after: str = "", limit: int = 100
    ) -> list[StoredResponse]:
        page = select(responses).where(_theirs(tenant, owner), responses.c.id > after)
        rows = connection.execute(page.order_by(responses.c.id).limit(limit))
        return [self._response(row) for row in rows]

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

    def _response(self, row: Row[Any]) -> StoredResponse:
        """CWM-4004, CWM-4005."""
        content = self.vault.open(row.packed, SEALED, row.tenant, row.id)
        (restored,) = restore_json([content], response_id=row.id)
        return StoredResponse(
            row.tenant,
            row.id,
            row.owner,
            row.session_id,
            row.turn_id,
            row.created_at,
            restored["items"],
            restored["content"],
            row.previous,
        )


def _theirs(tenant: str, owner: str) -> ColumnElement[bool]:
    return and_(responses.c.tenant == tenant, responses.c.owner == owner)
