"""Rows of shared context, and the statements on them that several transactions have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from cwm.adapters.sql.tables import context_entries as entries
from cwm.adapters.sql.tables import context_scopes as scopes
from cwm.adapters.sql.tables import context_snapshots as snapshots
from cwm.domain.shared_context import Entry, Head, Scope, Snapshot
from cwm.ports.clock import Clock

ENTRY: Final = tuple(
    entries.c["size_bytes" if field.name == "size" else field.name] for field in fields(Entry)
)

# Databases bound how many values a statement takes.
_KEYS_AT_ONCE: Final = 500


def entry_of(row: Row[Any]) -> Entry:
    values: Sequence[Any] = tuple(row)
    return Entry(*values)


def snapshot_of(row: Row[Any]) -> Snapshot:
    return Snapshot(row.label, row.version, row.author, row.taken_at)


def of_scope(table: Any, scope: Scope) -> ColumnElement[bool]:
    return and_(table.c.tenant == scope.tenant, table.c.scope == scope.key)


def was_there(scope: Scope, version: int) -> ColumnElement[bool]:
    """What was the latest of its key at ``version``."""
    return and_(
        of_scope(entries, scope),
        entries.c.version <= version,
        or_(entries.c.superseded_at.is_(None), entries.c.superseded_at > version),
    )


def not_expired(at: datetime) -> ColumnElement[bool]:
    return or_(entries.c.expires_at.is_(None), entries.c.expires_at > at)


def shown_by_a_snapshot() -> ColumnElement[bool]:
    """Of a superseded row: some snapshot was taken while it held."""
    return exists().where(
        snapshots.c.tenant == entries.c.tenant,
        snapshots.c.scope == entries.c.scope,
        snapshots.c.version >= entries.c.version,
        snapshots.c.version < entries.c.superseded_at,
    )


def head(connection: Connection, scope: Scope, clock: Clock | None, *, lock: bool = False) -> Head:
    """Postgres says itself what time it is; a file has no clock but ours."""
    own_time = clock is None and connection.dialect.name == "postgresql"
    columns = [scopes.c.version, scopes.c.floor]
    if own_time:
        columns.append(func.clock_timestamp().label("now"))  # type: ignore[arg-type]
    wanted = select(*columns).where(of_scope(scopes, scope))
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is not None and own_time:
        return Head(row.version, row.floor, row.now.astimezone(UTC))
    now = datetime.now(UTC) if clock is None else clock.now()
    return Head(0, 0, now) if row is None else Head(row.version, row.floor, now)


def locked(connection: Connection, scope: Scope, clock: Clock | None) -> Head:
    """The head of a scope that nobody else writes until the transaction ends; it is made if need be."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    now = datetime.now(UTC) if clock is None else clock.now()
    first = {"tenant": scope.tenant, "scope": scope.key, "version": 0, "floor": 0, "written_at": now}
    connection.execute(dialect.insert(scopes).values(first).on_conflict_do_nothing())
    return head(connection, scope, clock, lock=True)


def move_head(connection: Connection, scope: Scope, moved: Head) -> None:
    connection.execute(
        update(scopes)
        .where(of_scope(scopes, scope))
        .values(version=moved.version, floor=moved.floor, written_at=moved.now)
    )


def current(connection: Connection, scope: Scope, keys: Sequence[str]) -> dict[str, Entry]:
    """What the keys are now, deletions and expired ones too."""
    found: dict[str, Entry] = {}
    for some in _split(keys):
        wanted = select(*ENTRY).where(
            of_scope(entries, scope), entries.c.superseded_at.is_(None), entries.c.key.in_(some)
        )
        found |= {row.key: entry_of(row) for row in connection.execute(wanted)}
    return found


def supersede(connection: Connection, scope: Scope, keys: Sequence[str], version: int) -> None:
    for some in _split(keys):
        connection.execute(
            update(entries)
            .where(of_scope(entries, scope), entries.c.superseded_at.is_(None), entries.c.key.in_(some))
            .values(superseded_at=version)
        )


def holder_of(scope: Scope, key: str, version: int) -> str:
    """By whom an entry's content is held."""
    return f"context:{scope.key}:{version}:{key}"


def _split(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        yield keys[start : start + _KEYS_AT_ONCE]
