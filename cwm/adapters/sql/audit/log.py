"""The audit log in the registry's database: appends records to the chains.

The primary key of a record is its tenant and number: if two gateways write the same number, the second insert
fails, and that gateway links its record again. No gateway holds a lock between transactions, and a gateway that
writes alone needs one statement. Events recorded during a write go into the next one.

A gateway that has to read the end of a chain again checks that its own last record is still there, and that the new
last one was signed: if not, it reports the chain before it links the next record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import IntegrityError

from cwm.adapters.sql.audit.anchors import anchor_of
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.failures import coded_errors
from cwm.adapters.sql.rows import AUDIT_RECORD, insert_into, record_of, record_values
from cwm.adapters.sql.tables.audit import audit_log
from cwm.adapters.sql.transactions import reading
from cwm.domain.audit import TRACE_ID, AuditEvent
from cwm.domain.audit_chain import CARRIED, AuditRecord, ChainKeys, Place
from cwm.domain.errors import StorageReadError, StorageWriteError
from cwm.ports.meter import Meter
from cwm.ports.tracing import UNTRACED, Tracer, trace_id_of

_AT_ONCE: Final = 200
_ALONE: Final = 3
"""Attempts to write one record without a lock; each fails if another gateway was faster."""
_LOCKED: Final = 20
_TENANTS: Final = 4096
_LOCK: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 4412749))")

_log = logging.getLogger("cwm.audit")

_Waiting: TypeAlias = tuple[AuditEvent, "asyncio.Future[None]"]


@dataclass(slots=True)
class _Tail:
    """The last known end of a tenant's chain, and the events that wait to be appended.

    ``own`` is the last place that is known to have been in the chain: this gateway wrote it.
    """

    tenant: str
    place: Place | None = None
    own: Place | None = None
    waiting: list[_Waiting] = field(default_factory=list)
    writing: asyncio.Task[None] | None = None


class SqlAuditLog:
    """The ports ``AuditLog`` and ``ChainEnds`` on SQLite or Postgres."""

    def __init__(
        self, database: Database, keys: ChainKeys, meter: Meter | None = None, tracer: Tracer = UNTRACED
    ) -> None:
        self.database = database
        self.keys = keys
        self._meter = meter
        self._tracer = tracer
        self._replaced = False
        self._tails: OrderedDict[str, _Tail] = OrderedDict()

    async def record(self, event: AuditEvent) -> None:
        """Record the event. If the caller is cancelled while it waits, the event is recorded anyway."""
        if self._tracer.on and (trace_id := trace_id_of(self._tracer.carrier())) is not None:
            event = replace(event, details={**event.details, TRACE_ID: trace_id})
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

    async def examine(self, tenant: str) -> None:
        tail = self._tails.get(tenant)
        if tail is not None and (own := tail.own) is not None:
            with coded_errors(StorageReadError):
                end = await self.database.read(lambda connection: _end(connection, self.keys, tenant, own))
            self._report(tail, end)

    def fault(self) -> str | None:
        if not self._replaced:
            return None
        return "An audit chain is not as this gateway wrote it: run `cwm audit verify`."

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
                place = await self.database.write(
                    lambda connection: self._append_locked(connection, tail, events)
                )
            except IntegrityError:
                # A gateway that writes a single record does not take the lock.
                if attempt == _LOCKED:
                    raise
            else:
                tail.place = tail.own = place
                return

    async def _append_alone(self, tail: _Tail, event: AuditEvent) -> bool:
        if tail.place is None:
            end = await self.database.read(
                lambda connection: _end(connection, self.keys, tail.tenant, tail.own)
            )
            self._report(tail, end)
            tail.place = end.place
        record = self.keys.link(event, tail.place)
        added = await self.database.write_at_once(lambda connection: _add_if_free(connection, record))
        if added:
            tail.own = record.place
        tail.place = record.place if added else None
        return added

    def _append_locked(self, connection: Connection, tail: _Tail, events: Sequence[AuditEvent]) -> Place:
        if connection.dialect.name == "postgresql":
            connection.execute(_LOCK, {"tenant": tail.tenant})
        end = _end(connection, self.keys, tail.tenant, tail.own)
        self._report(tail, end)
        place, records = end.place, []
        for event in events:
            record = self.keys.link(event, place)
            place = record.place
            records.append(record)
        connection.execute(insert(audit_log), [record_values(record) for record in records])
        return place

    def _report(self, tail: _Tail, end: _End) -> None:
        if end.follows:
            return
        own, tail.own, self._replaced = tail.own, end.place, True
        _log.error(
            "audit_chain_replaced %s: it ends at %d:%s, which does not follow %s, the last record that this gateway "
            "wrote (cwm audit verify)",
            *(tail.tenant, end.place.seq, end.place.digest, f"{own.seq}:{own.digest}" if own else ""),
        )
        if self._meter is not None:
            self._meter.event("audit_chain_replaced")


class _StoppedError(StorageWriteError):
    def __init__(self) -> None:
        super().__init__("The gateway stopped while this was being recorded.")


@dataclass(frozen=True, slots=True)
class _End:
    """The last place of a stored chain, and whether it follows the last record that this gateway wrote."""

    place: Place
    follows: bool


def _end(connection: Connection, keys: ChainKeys, tenant: str, own: Place | None) -> _End:
    place = _last(connection, tenant)
    if own is None or place == own:
        return _End(place, follows=True)
    return _End(
        place, _is_there(connection, keys, tenant, own) and _is_signed(connection, keys, tenant, place)
    )


def _is_there(connection: Connection, keys: ChainKeys, tenant: str, own: Place) -> bool:
    """Whether the chain has this gateway's record, or has had it and pruned it."""
    at = select(audit_log.c.digest).where(audit_log.c.tenant == tenant, audit_log.c.seq == own.seq)
    digest = connection.execute(at).scalar_one_or_none()
    if digest is not None:
        return bool(digest == own.digest)
    anchor = anchor_of(connection, tenant)
    return anchor.pruned.seq >= own.seq and keys.signed_anchor(anchor)


def _is_signed(connection: Connection, keys: ChainKeys, tenant: str, place: Place) -> bool:
    """Whether a gateway wrote this record; one with a newer secret than this gateway's cannot be checked here."""
    at = select(*AUDIT_RECORD).where(audit_log.c.tenant == tenant, audit_log.c.seq == place.seq)
    try:
        record = record_of(connection.execute(at).one())
    except ValueError:
        return False
    return record.key_id != CARRIED and (not keys.knows(record.key_id) or keys.holds(record))


def _last(connection: Connection, tenant: str) -> Place:
    newest = (
        select(audit_log.c.seq, audit_log.c.digest)
        .where(audit_log.c.tenant == tenant)
        .order_by(audit_log.c.seq.desc())
        .limit(1)
    )
    row = connection.execute(newest).one_or_none()
    return Place() if row is None else Place(row.seq, row.digest)


def _add_if_free(connection: Connection, record: AuditRecord) -> bool:
    insertion = insert_into(connection, audit_log).values(record_values(record)).on_conflict_do_nothing()
    return connection.execute(insertion).rowcount == 1
