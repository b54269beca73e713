"""The audit log in the registry's database: appends records to the chains.

The primary key of a record is its tenant and number: if two gateways write the same number, the second insert
fails, and that gateway links its record again. No gateway holds a lock between transactions, and a gateway that
writes alone needs one statement. Events recorded during a write go into the next one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sqlalchemy import Connection, insert, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.failures import coded_errors
from cwm.adapters.sql.rows import AUDIT_RECORD, record_of, record_values
from cwm.adapters.sql.tables.audit import audit_log
from cwm.adapters.sql.transactions import reading
from cwm.domain.audit import AuditEvent
from cwm.domain.audit_chain import AuditRecord, ChainKeys, Place
from cwm.domain.errors import StorageWriteError

_AT_ONCE: Final = 200
_ALONE: Final = 3
"""Attempts to write one record without a lock; each fails if another gateway was faster."""
_LOCKED: Final = 20
_TENANTS: Final = 4096
_LOCK: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 4412749))")

_Waiting: TypeAlias = tuple[AuditEvent, "asyncio.Future[None]"]


@dataclass(slots=True)
class _Tail:
    """The last known end of a tenant's chain, and the events that wait to be appended."""

    tenant: str
    place: Place | None = None
    waiting: list[_Waiting] = field(default_factory=list)
    writing: asyncio.Task[None] | None = None


class SqlAuditLog:
    """The ports ``AuditLog`` and ``ChainEnds`` on SQLite or Postgres."""

    def __init__(self, database: Database, keys: ChainKeys) -> None:
        self.database = database
        self.keys = keys
        self._tails: OrderedDict[str, _Tail] = OrderedDict()

    async def record(self, event: AuditEvent) -> None:
        """Record the event. If the caller is cancelled while it waits, the event is recorded anyway."""
        tail = self._tail(event.tenant)
        done = asyncio.get_running_loop().create_future()
        tail.waiting.append((event, done))
        if tail.writing is None:
            tail.writing = asyncio.create_task(self._write(tail))
        with coded_errors(StorageWriteError):
            await done

    @reading
    def events(self, connection: Connection, tenant: str, limit: int) -> list[AuditEvent]:
        """The tenant's newest events; of events with the same timestamp, the last written comes first."""
        newest_first = (
            select(*AUDIT_RECORD)
            .where(audit_log.c.tenant == tenant)
            .order_by(audit_log.c.timestamp.desc(), audit_log.c.seq.desc())
            .limit(limit)
        )
        return [record_of(row).event for row in connection.execute(newest_first)]

    def ends(self) -> Mapping[str, Place]:
        return {tenant: tail.place for tenant, tail in self._tails.items() if tail.place is not None}

    async def settle(self) -> None:
        """Return when every recorded event is written."""
        while writing := [tail.writing for tail in self._tails.values() if tail.writing is not None]:
            await asyncio.wait(writing)

    def _tail(self, tenant: str) -> _Tail:
        tail = self._tails.get(tenant)
        if tail is None:
            self._make_room()
            tail = self._tails[tenant] = _Tail(tenant)
        self._tails.move_to_end(tenant)
        return tail

    def _make_room(self) -> None:
        if len(self._tails) < _TENANTS:
            return
        idle = next((tail for tail in self._tails.values() if tail.writing is None), None)
        if idle is not None:
            del self._tails[idle.tenant]

    async def _write(self, tail: _Tail) -> None:
        try:
            while tail.waiting:
                batch, tail.waiting = tail.waiting[:_AT_ONCE], tail.waiting[_AT_ONCE:]
                await self._write_batch(tail, batch)
        finally:
            tail.writing = None

    async def _write_batch(self, tail: _Tail, batch: Sequence[_Waiting]) -> None:
        try:
            await self._append(tail, [event for event, _ in batch])
        except BaseException as error:
            # The batch may have been written: the next one reads the end of the chain.
            tail.place = None
            for _, done in batch:
                if not done.done():
                    done.set_exception(error if isinstance(error, Exception) else _StoppedError())
            if not isinstance(error, Exception):
                raise
        else:
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    async def _append(self, tail: _Tail, events: Sequence[AuditEvent]) -> None:
        if len(events) == 1:
            for _ in range(_ALONE):
                if await self._append_alone(tail, events[0]):
                    return
        for attempt in range(1, _LOCKED + 1):
            try:
                tail.place = await self.database.write(
                    lambda connection: self._append_locked(connection, tail.tenant, events)
                )
            except IntegrityError:
                # A gateway that writes a single record does not take the lock.
                if attempt == _LOCKED:
                    raise
            else:
                return

    async def _append_alone(self, tail: _Tail, event: AuditEvent) -> bool:
        if tail.place is None:
            tail.place = await self.database.read(lambda connection: _end(connection, tail.tenant))
        record = self.keys.link(event, tail.place)
        added = await self.database.write_at_once(lambda connection: _add_if_free(connection, record))
        tail.place = record.place if added else None
        return added

    def _append_locked(self, connection: Connection, tenant: str, events: Sequence[AuditEvent]) -> Place:
        if connection.dialect.name == "postgresql":
            connection.execute(_LOCK, {"tenant": tenant})
        place, records = _end(connection, tenant), []
        for event in events:
            record = self.keys.link(event, place)
            place = record.place
            records.append(record)
        connection.execute(insert(audit_log), [record_values(record) for record in records])
        return place


class _StoppedError(StorageWriteError):
    def __init__(self) -> None:
        super().__init__("The gateway stopped while this was being recorded.")


def _end(connection: Connection, tenant: str) -> Place:
    newest = (
        select(audit_log.c.seq, audit_log.c.digest)
        .where(audit_log.c.tenant == tenant)
        .order_by(audit_log.c.seq.desc())
        .limit(1)
    )
    row = connection.execute(newest).one_or_none()
    return Place() if row is None else Place(row.seq, row.digest)


def _add_if_free(connection: Connection, record: AuditRecord) -> bool:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    insertion = dialect.insert(audit_log).values(record_values(record)).on_conflict_do_nothing()
    return connection.execute(insertion).rowcount == 1
