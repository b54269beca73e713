"""Rows of shared context, and the statements that several transactions share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    or_,
    select,
    update,
)

from cwm.adapters.sql.clock import CLOCK_OF_POSTGRES
from cwm.adapters.sql.rows import at_a_time, insert_into
from cwm.adapters.sql.tables.shared_context import context_entries as entries
from cwm.adapters.sql.tables.shared_context import context_scopes as scopes
from cwm.adapters.sql.tables.shared_context import context_snapshots as snapshots
from cwm.domain.shared_context import ContextScope, Entry, Head, Snapshot
from cwm.ports.clock import Clock

ENTRY: Final = tuple(
    entries.c["size_bytes" if field.name == "size" else field.name] for field in fields(Entry)
)

# Statements are built once, because building one takes longer than running it.
_THIS_SCOPE: Final = and_(scopes.c.tenant == bindparam("of_tenant"), scopes.c.scope == bindparam("of_scope"))
_HEAD: Final = select(scopes.c.version, scopes.c.floor).where(_THIS_SCOPE)
_TIMED_HEAD: Final = _HEAD.add_columns(CLOCK_OF_POSTGRES.label("now"))
_HEADS: Final = {
    (False, False): _HEAD,
    (False, True): _HEAD.with_for_update(),
    (True, False): _TIMED_HEAD,
    (True, True): _TIMED_HEAD.with_for_update(),
}
"""Keyed by whether the database provides the time, and whether the row is locked."""
_MOVE_HEAD: Final = (
    update(scopes)
    .where(_THIS_SCOPE)
    .values(version=bindparam("to_version"), floor=bindparam("to_floor"), written_at=bindparam("at"))
)
_THESE_NOW: Final = and_(
    entries.c.tenant == bindparam("of_tenant"),
    entries.c.scope == bindparam("of_scope"),
    entries.c.superseded_at.is_(None),
    entries.c.key.in_(bindparam("of_keys", expanding=True)),
)
_CURRENT: Final = select(*ENTRY).where(_THESE_NOW)
_SUPERSEDE: Final = update(entries).where(_THESE_NOW).values(superseded_at=bindparam("by_version"))

_UNNEEDED: Final = (
    and_(
        entries.c.superseded_at <= bindparam("floor"),
        ~exists().where(
            snapshots.c.tenant == entries.c.tenant,
            snapshots.c.scope == entries.c.scope,
            snapshots.c.version >= entries.c.version,
            snapshots.c.version < entries.c.superseded_at,
        ),
    ),
    and_(entries.c.superseded_at.is_(None), entries.c.expires_at <= bindparam("at")),
    and_(
        entries.c.superseded_at.is_(None), entries.c.digest.is_(None), entries.c.version <= bindparam("floor")
    ),
)
"""Superseded before every version and snapshot that can be read; expired; deleted before the oldest readable version."""
_OF_SCOPE: Final = and_(entries.c.tenant == bindparam("of_tenant"), entries.c.scope == bindparam("of_scope"))
_FIND_UNNEEDED: Final = tuple(
    select(*ENTRY).where(_OF_SCOPE, unneeded).limit(bindparam("most")) for unneeded in _UNNEEDED
)
_DROP: Final = delete(entries).where(
    _OF_SCOPE, entries.c.key == bindparam("of_key"), entries.c.version == bindparam("of_version")
)


def entry_of(row: Row[Any]) -> Entry:
    values: Sequence[Any] = tuple(row)
    return Entry(*values)


def snapshot_of(row: Row[Any]) -> Snapshot:
    return Snapshot(row.label, row.version, row.author, row.taken_at)


def of_scope(table: Any, scope: ContextScope) -> ColumnElement[bool]:
    return and_(table.c.tenant == scope.tenant, table.c.scope == scope.key)


def was_there(scope: ContextScope, version: int) -> ColumnElement[bool]:
    """Entries that were the latest of their key at ``version``."""
    return and_(
        of_scope(entries, scope),
        entries.c.version <= version,
        or_(entries.c.superseded_at.is_(None), entries.c.superseded_at > version),
    )


def not_expired(at: datetime) -> ColumnElement[bool]:
    return or_(entries.c.expires_at.is_(None), entries.c.expires_at > at)


def head(connection: Connection, scope: ContextScope, clock: Clock | None, *, lock: bool = False) -> Head:
    """The scope's head, with the time of ``clock``, or else of Postgres, or else of this machine."""
    own_time = clock is None and connection.dialect.name == "postgresql"
    query = _HEADS[own_time, lock]
    row = connection.execute(query, _which(scope)).one_or_none()
    if row is not None and own_time:
        return Head(row.version, row.floor, row.now.astimezone(UTC))
    now = datetime.now(UTC) if clock is None else clock.now()
    return Head(0, 0, now) if row is None else Head(row.version, row.floor, now)


def locked(connection: Connection, scope: ContextScope, clock: Clock | None) -> Head:
    """The head of a scope, created if missing, and locked against other writers until the transaction ends."""
    scope_head = head(connection, scope, clock, lock=True)
    if scope_head.version:
        return scope_head
    first = {
        "tenant": scope.tenant,
        "scope": scope.key,
        "version": 0,
        "floor": 0,
        "written_at": scope_head.now,
    }
    connection.execute(insert_into(connection, scopes).values(first).on_conflict_do_nothing())
    return head(connection, scope, clock, lock=True)


def move_head(connection: Connection, scope: ContextScope, new_head: Head) -> None:
    to = {"to_version": new_head.version, "to_floor": new_head.floor, "at": new_head.now}
    connection.execute(_MOVE_HEAD, {**_which(scope), **to})


def current(connection: Connection, scope: ContextScope, keys: Sequence[str]) -> dict[str, Entry]:
    """The keys' current entries, including deletions and expired ones."""
    by_key: dict[str, Entry] = {}
    for batch in at_a_time(keys):
        rows = connection.execute(_CURRENT, {**_which(scope), "of_keys": batch})
        by_key |= {row.key: entry_of(row) for row in rows}
    return by_key


def supersede(connection: Connection, scope: ContextScope, keys: Sequence[str], version: int) -> None:
    for batch in at_a_time(keys):
        connection.execute(_SUPERSEDE, {**_which(scope), "of_keys": batch, "by_version": version})


def drop_unneeded(connection: Connection, scope: ContextScope, head: Head, most: int) -> list[Entry]:
    """Delete entries that no request can read any more, at most ``most`` of each kind, and return them."""
    limits = {"floor": head.floor, "at": head.now, "most": most}
    unneeded = [
        entry_of(row)
        for query in _FIND_UNNEEDED
        for row in connection.execute(query, {**_which(scope), **limits})
    ]
    if unneeded:
        rows = [{**_which(scope), "of_key": entry.key, "of_version": entry.version} for entry in unneeded]
        connection.execute(_DROP, rows)
    return unneeded


def holder_of(scope: ContextScope, key: str, version: int) -> str:
    """The holder's name of an entry's content."""
    return f"context:{scope.key}:{version}:{key}"


def _which(scope: ContextScope) -> dict[str, Any]:
    return {"of_tenant": scope.tenant, "of_scope": scope.key}
