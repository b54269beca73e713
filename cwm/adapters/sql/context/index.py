"""Shared context in the registry's database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from cwm.adapters.sql.context import content_rows
from cwm.adapters.sql.context import rows as context_rows
from cwm.adapters.sql.context.rows import ENTRY, entry_of, holder_of, of_scope
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.shared_context import context_entries as entries
from cwm.adapters.sql.tables.shared_context import context_scopes as scopes
from cwm.adapters.sql.tables.shared_context import context_snapshots
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.domain.errors import ContextConflictError
from cwm.domain.shared_context import (
    SESSION,
    ContextScope,
    Entry,
    Head,
    Snapshot,
    Write,
    conflict,
    refusal_of,
    scope_by_key,
)
from cwm.ports.clock import Clock
from cwm.ports.context_index import Bytes, Delta, Written

# Every 16th write of a scope cleans it up, at most 256 entries of each kind.
_VACUUM_EVERY: Final = 16
_VACUUMED_AT_ONCE: Final = 256
# Contents may expire by another clock; the extra minute keeps a value at least as long as its key.
_GRACE: Final = timedelta(minutes=1)


_ADD: Final = insert(entries)


class SqlContextIndex:
    """The port ``ContextIndex`` on SQLite or Postgres.

    A write locks its scope's row, so writes to one scope happen one after the other. Without ``clock``,
    Postgres's own clock decides what has expired.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self._clock = clock

    @glancing
    def head(self, connection: Connection, scope: ContextScope) -> Head:
        return context_rows.head(connection, scope, self._clock)

    @reading
    def since(self, connection: Connection, scope: ContextScope, version: int) -> Delta:
        head = context_rows.head(connection, scope, self._clock)
        whole = not head.floor <= version <= head.version
        query = select(*ENTRY).where(context_rows.was_there(scope, head.version))
        if whole:
            query = query.where(entries.c.digest.is_not(None))
        else:
            query = query.where(entries.c.version > version)
        return Delta(head, tuple(entry_of(row) for row in connection.execute(query)), whole)

    @reading
    def past(self, connection: Connection, scope: ContextScope, key: str, version: int) -> Entry | None:
        now = context_rows.head(connection, scope, self._clock).now
        query = select(*ENTRY).where(context_rows.was_there(scope, version), entries.c.key == key)
        row = connection.execute(query).one_or_none()
        entry = None if row is None else entry_of(row)
        return entry if entry is not None and entry.is_there(now) else None

    @reading
    def state(self, connection: Connection, scope: ContextScope, version: int) -> list[Entry]:
        now = context_rows.head(connection, scope, self._clock).now
        query = (
            select(*ENTRY)
            .where(
                context_rows.was_there(scope, version),
                entries.c.digest.is_not(None),
                context_rows.not_expired(now),
            )
            .order_by(entries.c.key)
        )
        return [entry_of(row) for row in connection.execute(query)]

    @writing
    def write(
        self,
        connection: Connection,
        scope: ContextScope,
        writes: Sequence[Write],
        author: str,
        *,
        new: Bytes | None = None,
        at: int | None = None,
        keep: int,
    ) -> Written | None:
        head = context_rows.locked(connection, scope, self._clock)
        if at is not None and at != head.version:
            return None
        current = context_rows.current(connection, scope, [write.key for write in writes])
        for write in writes:
            _refuse(write, current.get(write.key), head.now)
        changing = [write for write in writes if write.digest or _is_there(current.get(write.key), head.now)]
        if not changing:
            return Written(head, ())
        new_head = Head(head.version + 1, max(head.floor, head.version + 1 - keep), head.now)
        new_entries = [_entry(write, new_head, author) for write in changing]
        if new is not None:
            content_rows.put(connection, scope.tenant, new.digest, new.stored, new.quota_bytes, head.now)
        # Hold new contents before the clean-up: it may drop the last other holder of the same content.
        for entry in new_entries:
            _hold(connection, scope, entry)
        dropped_digests: list[str] = []
        if new_head.version % _VACUUM_EVERY == 0:
            dropped_digests, _ = self._vacuum(connection, scope, new_head)
        current_keys = [write.key for write in changing if write.key in current]
        context_rows.supersede(connection, scope, current_keys, new_head.version)
        _add(connection, scope, new_entries)
        context_rows.move_head(connection, scope, new_head)
        return Written(new_head, tuple(new_entries), tuple(dropped_digests))

    @writing
    def take_snapshot(
        self, connection: Connection, scope: ContextScope, label: str, author: str, most: int
    ) -> tuple[Snapshot, list[str]]:
        head = context_rows.locked(connection, scope, self._clock)
        snapshots = _snapshots(connection, scope)
        if any(snapshot.label == label for snapshot in snapshots):
            raise ContextConflictError(
                "There is a snapshot of that label already.", label=label, reason="label"
            )
        old_labels = [snapshot.label for snapshot in snapshots[: max(0, len(snapshots) + 1 - most)]]
        for old_label in old_labels:
            connection.execute(
                delete(context_snapshots).where(
                    of_scope(context_snapshots, scope), context_snapshots.c.label == old_label
                )
            )
        new_snapshot = Snapshot(label, head.version, author, head.now)
        connection.execute(
            insert(context_snapshots).values(
                tenant=scope.tenant,
                scope=scope.key,
                label=label,
                version=new_snapshot.version,
                author=author,
                taken_at=new_snapshot.taken_at,
            )
        )
        return new_snapshot, old_labels

    @reading
    def snapshots(self, connection: Connection, scope: ContextScope) -> list[Snapshot]:
        return _snapshots(connection, scope)

    @writing
    def trim(self, connection: Connection, scope: ContextScope) -> list[str]:
        head = context_rows.locked(connection, scope, self._clock)
        new_head = Head(head.version, head.version, head.now)
        context_rows.move_head(connection, scope, new_head)
        dropped_digests, more = self._vacuum(connection, scope, new_head)
        while more:
            further, more = self._vacuum(connection, scope, new_head)
            dropped_digests += further
        return dropped_digests

    @writing
    def forget(self, connection: Connection, scope: ContextScope) -> None:
        head = context_rows.locked(connection, scope, self._clock)
        content_rows.lock(connection, scope.tenant)
        query = select(*ENTRY).where(of_scope(entries, scope), entries.c.digest.is_not(None))
        _release(connection, scope, [entry_of(row) for row in connection.execute(query)], head.now)
        for table in (entries, context_snapshots, scopes):
            connection.execute(delete(table).where(of_scope(table, scope)))

    @reading
    def private_scopes_of_every_tenant(
        self, connection: Connection, written_before: datetime
    ) -> list[ContextScope]:
        query = select(scopes.c.tenant, scopes.c.scope).where(
            scopes.c.scope.like(f"{SESSION}:%"), scopes.c.written_at < written_before
        )
        return [scope_by_key(row.tenant, row.scope) for row in connection.execute(query)]

    @reading
    def scopes(self, connection: Connection, tenant: str) -> list[ContextScope]:
        query = select(scopes.c.scope).where(scopes.c.tenant == tenant).order_by(scopes.c.scope)
        return [scope_by_key(tenant, key) for key in connection.execute(query).scalars()]

    def _vacuum(self, connection: Connection, scope: ContextScope, head: Head) -> tuple[list[str], bool]:
        """Delete entries that no request can read any more; return the deleted contents, and whether there were entries."""
        content_rows.lock(connection, scope.tenant)
        unneeded = context_rows.drop_unneeded(connection, scope, head, _VACUUMED_AT_ONCE)
        return _release(connection, scope, unneeded, head.now), bool(unneeded)


def _refuse(write: Write, current: Entry | None, now: datetime) -> None:
    refusal = refusal_of(write, current, now)
    if refusal is not None:
        version = current.version if current is not None and _is_there(current, now) else 0
        raise conflict(refusal, write.key, version)


def _is_there(entry: Entry | None, now: datetime) -> bool:
    return entry is not None and entry.is_there(now)


def _entry(write: Write, head: Head, author: str) -> Entry:
    expires_at = write.expires_at
    if write.ttl_ms is not None:
        expires_at = head.now + timedelta(milliseconds=write.ttl_ms)
    return Entry(
        key=write.key,
        version=head.version,
        digest=write.digest,
        size=write.size,
        priority=write.priority,
        immutable=write.immutable,
        author=author,
        written_at=head.now,
        expires_at=expires_at,
    )


def _add(connection: Connection, scope: ContextScope, new_entries: Sequence[Entry]) -> None:
    rows = [
        {
            "tenant": scope.tenant,
            "scope": scope.key,
            "key": entry.key,
            "version": entry.version,
            "superseded_at": None,
            "digest": entry.digest,
            "size_bytes": entry.size,
            "priority": entry.priority,
            "immutable": entry.immutable,
            "author": entry.author,
            "written_at": entry.written_at,
            "expires_at": entry.expires_at,
        }
        for entry in new_entries
    ]
    connection.execute(_ADD, rows)


def _hold(connection: Connection, scope: ContextScope, entry: Entry) -> None:
    if entry.digest is None:
        return
    until = None if entry.expires_at is None else entry.expires_at + _GRACE
    holder = holder_of(scope, entry.key, entry.version)
    content_rows.add_holder(connection, scope.tenant, entry.digest, holder, until)


def _release(
    connection: Connection, scope: ContextScope, unneeded: Sequence[Entry], now: datetime
) -> list[str]:
    with_content = [entry for entry in unneeded if entry.digest is not None]
    for entry in with_content:
        content_rows.drop_holder(
            connection, scope.tenant, str(entry.digest), holder_of(scope, entry.key, entry.version)
        )
    return content_rows.drop_unheld(
        connection, scope.tenant, {str(entry.digest) for entry in with_content}, now
    )


def _snapshots(connection: Connection, scope: ContextScope) -> list[Snapshot]:
    query = (
        select(context_snapshots)
        .where(of_scope(context_snapshots, scope))
        .order_by(context_snapshots.c.version, context_snapshots.c.taken_at, context_snapshots.c.label)
    )
    return [context_rows.snapshot_of(row) for row in connection.execute(query)]
