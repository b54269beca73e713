"""Records of stored results in the registry's database."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Text, delete, func, insert, literal, select, tuple_

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.columns import UtcDateTime
from cwm.adapters.sql.tables.contents import stored_results
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.domain.results import PartKind, ResultUse, StoredPart, StoredResult

_FIELDS: Final = tuple(field.name for field in fields(StoredResult))


class SqlResultRecords:
    """The port ``ResultRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def keep(self, connection: Connection, result: StoredResult, quota_bytes: int | None) -> bool:
        if quota_bytes is not None:
            _lock(connection, result.tenant, result.owner)
            used = _use(connection, result.tenant, result.owner, result.created_at)
            if used.size_bytes + result.size > quota_bytes:
                return False
        connection.execute(insert(stored_results).values(_values(result)))
        return True

    @glancing
    def find(self, connection: Connection, tenant: str, handle: str) -> StoredResult | None:
        query = select(stored_results).where(
            stored_results.c.tenant == tenant, stored_results.c.handle == handle
        )
        row = connection.execute(query).one_or_none()
        return None if row is None else _result_of(row)

    @reading
    def use(self, connection: Connection, tenant: str, owner: str, at: datetime) -> ResultUse:
        return _use(connection, tenant, owner, at)

    @reading
    def of_owner(
        self,
        connection: Connection,
        tenant: str,
        owner: str,
        after: StoredResult | None = None,
        limit: int = 100,
    ) -> list[StoredResult]:
        place = tuple_(stored_results.c.expires_at, stored_results.c.handle)
        query = select(stored_results).where(
            stored_results.c.tenant == tenant, stored_results.c.owner == owner
        )
        if after is not None:
            last = (literal(after.expires_at, UtcDateTime), literal(after.handle, Text))
            query = query.where(place < tuple_(*last))
        newest = stored_results.c.expires_at.desc(), stored_results.c.handle.desc()
        return [_result_of(row) for row in connection.execute(query.order_by(*newest).limit(limit))]

    @reading
    def expired_of_every_tenant(self, connection: Connection, at: datetime, limit: int) -> list[StoredResult]:
        expires_at = stored_results.c.expires_at
        query = select(stored_results).where(expires_at <= at).order_by(expires_at).limit(limit)
        return [_result_of(row) for row in connection.execute(query)]

    @writing
    def forget(self, connection: Connection, result: StoredResult) -> None:
        connection.execute(
            delete(stored_results).where(
                stored_results.c.tenant == result.tenant, stored_results.c.handle == result.handle
            )
        )


def _lock(connection: Connection, tenant: str, owner: str) -> None:
    """Until the commit no other transaction counts this owner's results. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        name = json.dumps(["stored_results", tenant, owner])
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))


def _use(connection: Connection, tenant: str, owner: str, at: datetime) -> ResultUse:
    total = select(func.count(), func.coalesce(func.sum(stored_results.c.size_bytes), 0)).where(
        stored_results.c.tenant == tenant,
        stored_results.c.owner == owner,
        stored_results.c.expires_at > at,
    )
    count, size = connection.execute(total).one()
    return ResultUse(count, int(size))


def _values(result: StoredResult) -> dict[str, Any]:
    values = {name: getattr(result, name) for name in _FIELDS}
    return {**values, "parts": [asdict(part) for part in result.parts], "size_bytes": result.size}


def _result_of(row: Row[Any]) -> StoredResult:
    parts = tuple(StoredPart(**{**part, "kind": PartKind(part["kind"])}) for part in row.parts)
    return StoredResult(**{**{name: getattr(row, name) for name in _FIELDS}, "parts": parts})
