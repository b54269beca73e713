"""The tasks of upstreams in the registry's database."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Text, delete, func, insert, literal, select, tuple_, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.columns import UtcDateTime
from cwm.adapters.sql.tables.upstream_tasks import upstream_tasks
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.domain.upstream_tasks import UpstreamTask

_task = upstream_tasks.c
_FIELDS: Final = tuple(field.name for field in fields(UpstreamTask))


class SqlUpstreamTasks:
    """The port ``UpstreamTaskRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def keep(self, connection: Connection, task: UpstreamTask, most: int) -> bool:
        _lock(connection, task)
        open_ones = select(func.count()).where(
            _task.tenant == task.tenant, _task.owner == task.owner, _task.open_until > task.created_at
        )
        if connection.execute(open_ones).scalar_one() >= most:
            return False
        connection.execute(insert(upstream_tasks).values(asdict(task)))
        return True

    @glancing
    def find(self, connection: Connection, tenant: str, handle: str) -> UpstreamTask | None:
        query = select(upstream_tasks).where(_task.tenant == tenant, _task.handle == handle)
        row = connection.execute(query).one_or_none()
        return None if row is None else _of(row)

    @writing
    def change(self, connection: Connection, task: UpstreamTask) -> None:
        this = (_task.tenant == task.tenant) & (_task.handle == task.handle)
        changeable = {name: getattr(task, name) for name in ("status", "open_until", "task_id", "session")}
        connection.execute(update(upstream_tasks).where(this).values(changeable))

    @reading
    def of_owner(
        self,
        connection: Connection,
        tenant: str,
        owner: str,
        after: UpstreamTask | None = None,
        limit: int = 100,
    ) -> list[UpstreamTask]:
        query = select(upstream_tasks).where(_task.tenant == tenant, _task.owner == owner)
        if after is not None:
            last = literal(after.created_at, UtcDateTime), literal(after.handle, Text)
            query = query.where(tuple_(_task.created_at, _task.handle) < tuple_(*last))
        newest = _task.created_at.desc(), _task.handle.desc()
        return [_of(row) for row in connection.execute(query.order_by(*newest).limit(limit))]

    @writing
    def forget(self, connection: Connection, task: UpstreamTask) -> None:
        this = (_task.tenant == task.tenant) & (_task.handle == task.handle)
        connection.execute(delete(upstream_tasks).where(this))

    @writing
    def forget_expired_of_every_tenant(self, connection: Connection, at: datetime) -> None:
        connection.execute(delete(upstream_tasks).where(_task.expires_at <= at))


def _lock(connection: Connection, task: UpstreamTask) -> None:
    """Until the commit no other transaction counts this owner's tasks. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        name = json.dumps(["upstream_tasks", task.tenant, task.owner])
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))


def _of(row: Row[Any]) -> UpstreamTask:
    return UpstreamTask(**{name: getattr(row, name) for name in _FIELDS})
