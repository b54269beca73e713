"""Contents in the registry's database."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from cwm.adapters.sql.context import content_rows
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.contents import content_holders, content_usage, contents
from cwm.adapters.sql.transactions import reading, writing
from cwm.ports.clock import Clock
from cwm.ports.content_store import Content


class SqlContentStore:
    """The port ``ContentStore`` on SQLite or Postgres."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    @writing
    def put(
        self,
        connection: Connection,
        tenant: str,
        digest: str,
        stored: bytes,
        holder: str,
        expires_at: datetime | None,
        quota_bytes: int | None,
    ) -> None:
        content_rows.put(connection, tenant, digest, stored, quota_bytes, self._clock.now())
        content_rows.add_holder(connection, tenant, digest, holder, expires_at)

    @writing
    def hold(
        self, connection: Connection, tenant: str, digest: str, holder: str, expires_at: datetime | None
    ) -> bool:
        content_rows.lock(connection, tenant)
        if not content_rows.is_there(connection, tenant, digest):
            return False
        content_rows.add_holder(connection, tenant, digest, holder, expires_at)
        return True

    @reading
    def get(self, connection: Connection, tenant: str, digest: str) -> Content | None:
        query = select(contents.c.stored).where(contents.c.tenant == tenant, contents.c.digest == digest)
        stored = connection.execute(query).scalar_one_or_none()
        ends = select(content_holders.c.expires_at).where(
            content_holders.c.tenant == tenant, content_holders.c.digest == digest
        )
        current_ends = [
            end for end in connection.execute(ends).scalars() if end is None or end > self._clock.now()
        ]
        if stored is None or not current_ends:
            return None
        return Content(
            bytes(stored), None if None in current_ends else max(end for end in current_ends if end)
        )

    @writing
    def release(self, connection: Connection, tenant: str, digest: str, holder: str) -> bool:
        content_rows.lock(connection, tenant)
        content_rows.drop_holder(connection, tenant, digest, holder)
        return bool(content_rows.drop_unheld(connection, tenant, [digest], self._clock.now()))

    @writing
    def drop(self, connection: Connection, tenant: str, digest: str, stored: bytes) -> bool:
        content_rows.lock(connection, tenant)
        return content_rows.drop(connection, tenant, digest, stored)

    @reading
    def used_bytes(self, connection: Connection, tenant: str) -> int:
        query = select(content_usage.c.used_bytes).where(content_usage.c.tenant == tenant)
        return int(connection.execute(query).scalar_one_or_none() or 0)

    @writing
    def vacuum_of_every_tenant(self, connection: Connection) -> int:
        now = self._clock.now()
        tenants = select(content_holders.c.tenant).where(content_holders.c.expires_at <= now).distinct()
        count = 0
        for tenant in sorted(connection.execute(tenants).scalars()):
            content_rows.lock(connection, tenant)
            count += len(content_rows.drop_ended(connection, tenant, now))
        return count
