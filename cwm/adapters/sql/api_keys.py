"""API keys in the registry's database."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, insert, or_, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.api_keys import api_keys
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.domain.access import granted, spelled
from cwm.domain.api_key import ApiKey

_key = api_keys.c


@cache
def _key_of_every_tenant() -> Select[Any]:
    """Made once, because each authenticated request runs it."""
    return select(api_keys).where(_key.key_id == bindparam("key_id"))


class SqlApiKeys:
    """The port ``ApiKeys`` on SQLite or Postgres, without a cache."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def add(self, connection: Connection, key: ApiKey) -> None:
        connection.execute(
            insert(api_keys).values(
                {**asdict(key), "scopes": spelled(key.scopes), "workspaces": sorted(key.workspaces)}
            )
        )

    @glancing
    def find_of_every_tenant(self, connection: Connection, key_id: str) -> ApiKey | None:
        row = connection.execute(_key_of_every_tenant(), {"key_id": key_id}).one_or_none()
        return None if row is None else _of(row)

    @reading
    def listed(self, connection: Connection, tenant: str) -> list[ApiKey]:
        newest_first = (
            select(api_keys).where(_key.tenant == tenant).order_by(_key.created_at.desc(), _key.key_id.desc())
        )
        return [_of(row) for row in connection.execute(newest_first)]

    @writing
    def revoke(self, connection: Connection, tenant: str, key_id: str, at: datetime) -> ApiKey | None:
        this = (_key.tenant == tenant) & (_key.key_id == key_id)
        connection.execute(update(api_keys).where(this, _key.revoked_at.is_(None)).values(revoked_at=at))
        row = connection.execute(select(api_keys).where(this)).one_or_none()
        return None if row is None else _of(row)

    @writing
    def note_use(self, connection: Connection, tenant: str, key_id: str, at: datetime) -> None:
        this = (_key.tenant == tenant) & (_key.key_id == key_id)
        is_later = or_(_key.last_used_at.is_(None), _key.last_used_at < at)
        connection.execute(update(api_keys).where(this, is_later).values(last_used_at=at))


def _of(row: Row[Any]) -> ApiKey:
    return ApiKey(**{**row._asdict(), "scopes": granted(row.scopes), "workspaces": frozenset(row.workspaces)})
