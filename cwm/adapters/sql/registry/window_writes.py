"""Steps of transactions that change windows, their chunk references and the intents about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError

from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.rows import WINDOW, at_a_time, intent_values, window_of, window_values
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from cwm.adapters.sql.turns.transcripts import forget_deleted
from cwm.adapters.sql.vault import Vault
from cwm.adapters.sql.window_list import terms
from cwm.domain.errors import StorageQuotaExceededError, WindowAlreadyExistsError, WindowNotFoundError
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.session import SessionState
from cwm.domain.window import Chunk, Durability, Retention, Window

_CONTENT: Final = ("session_id", "snapshot_id", "cache_salt")

# Built once, because building them takes longer than running them.
_FOUND: Final = select(*WINDOW).where(
    windows.c.tenant == bindparam("of_tenant"), windows.c.name == bindparam("of_name")
)
_FOUND_LOCKED: Final = _FOUND.with_for_update()
_REFERRED_TO: Final = (
    select(chunk_refs.c.hash)
    .where(
        chunk_refs.c.tenant == bindparam("of_tenant"),
        chunk_refs.c.cache_salt == bindparam("of_salt"),
        chunk_refs.c.hash.in_(bindparam("of_hashes", expanding=True)),
        chunk_refs.c.window_name != bindparam("but_by"),
    )
    .distinct()
)


def is_window(tenant: str, name: str) -> ColumnElement[bool]:
    return and_(windows.c.tenant == tenant, windows.c.name == name)


def is_still(window: Window) -> ColumnElement[bool]:
    """Matches the window, and neither a later window with its name nor the same one under another salt."""
    return and_(
        is_window(window.tenant, window.name),
        *(windows.c[name] == getattr(window, name) for name in _CONTENT),
    )


def same_content(one: Row[Any], other: Window) -> bool:
    """:func:`is_still` for a row that was read; the names may differ."""
    return all(getattr(one, name) == getattr(other, name) for name in _CONTENT)


def is_pending(window: Window) -> ColumnElement[bool]:
    return and_(is_still(window), windows.c.durability == Durability.PENDING.value)


def not_found(name: str) -> WindowNotFoundError:
    return WindowNotFoundError(f"There is no window '{name}'.", window_name=name)


def window_row(connection: Connection, tenant: str, name: str, *, lock: bool = False) -> Row[Any] | None:
    which = {"of_tenant": tenant, "of_name": name}
    return connection.execute(_FOUND_LOCKED if lock else _FOUND, which).one_or_none()


def intent_about(
    window: Window, operation: Operation, holder: str, at: datetime, debt: Debt | None = None
) -> Intent:
    return Intent(
        tenant=window.tenant,
        id=uuid4().hex,
        operation=operation,
        window_name=window.name,
        cache_salt=window.cache_salt,
        holder=holder,
        begun_at=at,
        session_id=window.session_id,
        snapshot_id=window.snapshot_id,
        debt=debt,
    )


def begin(connection: Connection, intent: Intent) -> Intent:
    connection.execute(insert(intents).values(intent_values(intent)))
    return intent


def owe(
    connection: Connection, window: Window, debt: Debt | None, holder: str, at: datetime
) -> Intent | None:
    """Record an intent to release the pins and chunks that a window no longer needs."""
    if not debt:
        return None
    return begin(connection, intent_about(window, Operation.RELEASE, holder, at, debt))


def end(connection: Connection, tenant: str, window_name: str) -> None:
    """End the window's intents, except thaws and releases."""
    about = and_(
        intents.c.tenant == tenant,
        intents.c.window_name == window_name,
        intents.c.operation.not_in((Operation.THAW.value, Operation.RELEASE.value)),
    )
    connection.execute(delete(intents).where(about))


def end_one(connection: Connection, tenant: str, intent_id: str) -> None:
    """End one intent, and delete the tokens that only it needed."""
    statement = (
        delete(intents)
        .where(intents.c.tenant == tenant, intents.c.id == intent_id)
        .returning(intents.c.snapshot_id)
    )
    snapshot_id = connection.execute(statement).scalar_one_or_none()
    if snapshot_id is not None:
        snapshots.lock(connection, tenant, snapshot_id)
        snapshots.drop_unused(connection, tenant, snapshot_id)


def add(
    connection: Connection, window: Window, *, snapshot_id: str, parent_uid: Any, uid: str | None = None
) -> Window:
    """Insert the window, with a ``uid`` of its own if none is given. The caller calls ``terms.count`` at the end of the transaction."""
    values = window_values(window) | {
        "uid": uid or uuid4().hex,
        "snapshot_id": snapshot_id,
        "parent_uid": parent_uid,
    }
    try:
        row = connection.execute(insert(windows).values(values).returning(*WINDOW)).one()
    except IntegrityError as error:
        raise WindowAlreadyExistsError(
            f"There is a window '{window.name}' already.", window_name=window.name
        ) from error
    terms.enlist(connection, window)
    return window_of(row)


def refer(connection: Connection, window: Window, chunks: Sequence[Chunk]) -> None:
    references = [
        {
            "tenant": window.tenant,
            "window_name": window.name,
            "position": position,
            "hash": chunk.hash,
            "size_bytes": chunk.size_bytes,
            "cache_salt": window.cache_salt,
            "root": window.identity.root,
        }
        for position, chunk in enumerate(chunks)
    ]
    if references:
        connection.execute(insert(chunk_refs), references)


def referred_to(
    connection: Connection, tenant: str, cache_salt: str, hashes: Sequence[str], *, but_by: str = ""
) -> set[str]:
    """Those of ``hashes`` that windows other than ``but_by`` refer to."""
    referred: set[str] = set()
    for batch in at_a_time(hashes):
        which = {"of_tenant": tenant, "of_salt": cache_salt, "of_hashes": batch, "but_by": but_by}
        referred.update(connection.execute(_REFERRED_TO, which).scalars())
    return referred


def share_references(connection: Connection, tenant: str, source: str, clone: str) -> None:
    columns = [column for column in chunk_refs.c if column.name != "window_name"]
    theirs = select(literal(clone), *columns).where(
        chunk_refs.c.tenant == tenant, chunk_refs.c.window_name == source
    )
    connection.execute(
        insert(chunk_refs).from_select(["window_name", *(column.name for column in columns)], theirs)
    )


def forget_references(connection: Connection, tenant: str, name: str) -> None:
    condition = and_(chunk_refs.c.tenant == tenant, chunk_refs.c.window_name == name)
    connection.execute(delete(chunk_refs).where(condition))


def remove(connection: Connection, window: Window) -> None:
    """Delete the window, its intents, and its tokens unless they are still needed.

    The caller calls ``terms.count`` at the end of the transaction.
    """
    tenant, name = window.tenant, window.name
    end(connection, tenant, name)
    snapshots.lock(connection, tenant, window.snapshot_id)
    terms.delist(connection, window)
    connection.execute(delete(windows).where(is_window(tenant, name)))
    snapshots.drop_unused(connection, tenant, window.snapshot_id)


def outlive_last_window(
    connection: Connection, vault: Vault, tenant: str, session_id: str, salt_scope: str, at: datetime
) -> None:
    """Once its last window is gone, a frozen session is expired: it can be frozen again, in ``salt_scope``, or deleted.

    What a deleted session left for the window goes with it.
    """
    remaining = select(windows.c.name).where(windows.c.tenant == tenant, windows.c.session_id == session_id)
    without_windows = and_(sessions.c.tenant == tenant, sessions.c.id == session_id, ~remaining.exists())
    state = sessions.c.state
    connection.execute(
        update(sessions)
        .where(without_windows, state == SessionState.FROZEN.value)
        .values(state=SessionState.EXPIRED.value, salt_scope=salt_scope, updated_at=at)
    )
    forget_deleted(connection, vault, tenant, session_id)


def require_quota(connection: Connection, window: Window, quota_bytes: int | None) -> None:
    """Raise CWM-4003 if the tenant's guaranteed windows, including this one and its references, exceed the quota."""
    if quota_bytes is None or window.retention is not Retention.GUARANTEED:
        return
    if connection.dialect.name == "postgresql":
        alone = text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 4003))")
        connection.execute(alone, {"tenant": window.tenant})
    used = guaranteed_bytes(connection, window.tenant)
    if used > quota_bytes:
        raise StorageQuotaExceededError(
            f"With '{window.name}' the guaranteed windows would take {used} bytes of a quota of {quota_bytes}. "
            "Delete some, or freeze with retention best_effort.",
            window_name=window.name,
            needed_bytes=used,
            quota_bytes=quota_bytes,
        )


def guaranteed_bytes(connection: Connection, tenant: str) -> int:
    """Bytes of the distinct chunks that guaranteed windows refer to, each counted once."""
    distinct = (
        select(func.max(chunk_refs.c.size_bytes).label("size_bytes"))
        .join(
            windows, and_(windows.c.tenant == chunk_refs.c.tenant, windows.c.name == chunk_refs.c.window_name)
        )
        .where(chunk_refs.c.tenant == tenant, windows.c.retention == Retention.GUARANTEED.value)
        .group_by(chunk_refs.c.cache_salt, chunk_refs.c.hash)
        .subquery()
    )
    return int(connection.execute(select(func.coalesce(func.sum(distinct.c.size_bytes), 0))).scalar_one())
