"""Windows, from the intent to freeze to their removal, and what refers to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from cwm.adapters.sql import snapshots
from cwm.adapters.sql import window_search as search
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import WINDOW, window_of, window_values
from cwm.adapters.sql.session_records import LIVE_STATES, uid_of
from cwm.adapters.sql.tables import canaries, chunk_refs, sessions, window_search, windows
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.canary import Canary
from cwm.domain.errors import (
    SessionNotActiveError,
    SessionNotFoundError,
    WindowAlreadyExistsError,
    WindowNotFoundError,
)
from cwm.domain.session import SessionState
from cwm.domain.window import Chunk, Durability, Snapshot, Window, WindowQuery
from cwm.ports.registry import Dependents, StoredChunks


class WindowRecords:
    """A window made again under a deleted one's name is another window: it inherits no dependents.

    Lineage is kept by a hidden uid, given once. ``parent_window`` and ``thawed_from`` go on naming the
    window that was, and a session's freeze hands on the uid that its thaw recorded.
    """

    database: Database

    @writing
    def begin_freeze(
        self, connection: Connection, window: Window, token_ids: Sequence[int], session_revision: int
    ) -> None:
        frozen = (
            update(sessions)
            .where(
                sessions.c.tenant == window.tenant,
                sessions.c.id == window.session_id,
                sessions.c.revision == session_revision,
                sessions.c.state.in_(LIVE_STATES),
            )
            .values(
                state=SessionState.FROZEN.value, frozen_at=window.created_at, updated_at=window.created_at
            )
        )
        parent_uid = _uid_of_parent(connection, window)
        snapshot_id = snapshots.keep(connection, window.tenant, token_ids)
        _add(connection, window, snapshot_id=snapshot_id, parent_uid=parent_uid)
        if connection.execute(frozen).rowcount != 1:
            raise SessionNotActiveError(
                f"Session '{window.session_id}' moved on or is no longer active; look at it and freeze again.",
                session_id=window.session_id,
            )

    @writing
    def finish_freeze(
        self,
        connection: Connection,
        tenant: str,
        name: str,
        stored: StoredChunks,
        at: datetime,
        canary: Canary | None = None,
    ) -> Window:
        """A window that another replica finished meanwhile is returned as it is."""
        durable = (
            update(windows)
            .where(_is_pending(tenant, name))
            .values(
                durability=Durability.DURABLE.value,
                block_count=len(stored.chunks),
                total_size_bytes=stored.total_size_bytes,
                storage_tier=stored.storage_tier.value,
                tiers=stored.tiers,
                updated_at=at,
            )
            .returning(*WINDOW)
        )
        row = connection.execute(durable).one_or_none()
        if row is None:
            return _finished(connection, tenant, name)
        window = window_of(row)
        snapshots.put(connection, window_search, search.search_values(window))
        _refer(connection, window, stored.chunks)
        if canary is not None:
            snapshots.put(connection, canaries, _canary_values(window, canary))
        return window

    @writing
    def fail_freeze(self, connection: Connection, tenant: str, name: str, reason: str, at: datetime) -> None:
        """Changes nothing unless the window is pending."""
        failed = (
            update(windows)
            .where(_is_pending(tenant, name))
            .values(durability=Durability.FAILED.value, failure=reason, updated_at=at)
        )
        connection.execute(failed)

    @writing
    def undo_freeze(
        self, connection: Connection, tenant: str, name: str, session_state: SessionState
    ) -> None:
        """Changes nothing unless the window is pending: what became durable meanwhile stays."""
        row = _row(connection, tenant, name, lock=True)
        if row is None or row.durability != Durability.PENDING.value:
            return
        _remove(connection, tenant, name, row.snapshot_id)
        connection.execute(
            update(sessions)
            .where(
                sessions.c.tenant == tenant,
                sessions.c.id == row.session_id,
                sessions.c.state == SessionState.FROZEN.value,
            )
            .values(state=session_state.value, frozen_at=None)
        )

    @writing
    def add_clone(self, connection: Connection, clone: Window, source: str) -> Window:
        row = _row(connection, clone.tenant, source, lock=True)
        if row is None:
            raise _not_found(source)
        uid = uid_of(clone.tenant, source)
        added = _add(connection, clone, snapshot_id=row.snapshot_id, parent_uid=uid)
        _share_references(connection, clone.tenant, source, clone.name)
        return added

    @writing
    def set_pinned(self, connection: Connection, tenant: str, name: str, pinned: bool) -> bool:
        change = update(windows).where(_is(tenant, name), windows.c.pinned != pinned).values(pinned=pinned)
        return connection.execute(change).rowcount == 1

    @reading
    def window(self, connection: Connection, tenant: str, name: str) -> Window | None:
        row = _row(connection, tenant, name)
        return None if row is None else window_of(row)

    @reading
    def windows(self, connection: Connection, tenant: str, query: WindowQuery) -> tuple[list[Window], int]:
        """Names sort by byte; a search ignores case as Unicode folds it."""
        rows = connection.execute(search.page(tenant, query)).all()
        if rows or query.offset == 0:
            return [window_of(row) for row in rows], rows[0][-1] if rows else 0
        return [], connection.execute(search.count(tenant, query)).scalar_one()

    @reading
    def canary(self, connection: Connection, tenant: str, snapshot_id: str, cache_salt: str) -> Canary | None:
        kept = select(canaries.c.content).where(
            canaries.c.tenant == tenant,
            canaries.c.snapshot_id == snapshot_id,
            canaries.c.cache_salt == cache_salt,
        )
        content = connection.execute(kept).scalar_one_or_none()
        return None if content is None else Canary.from_dict(content)

    @writing
    def store_again(
        self,
        connection: Connection,
        tenant: str,
        name: str,
        salt_scope: str,
        cache_salt: str,
        at: datetime,
    ) -> Window | None:
        pending = (
            update(windows)
            .where(_is(tenant, name))
            .values(
                durability=Durability.PENDING.value,
                salt_scope=salt_scope,
                cache_salt=cache_salt,
                pinned=False,
                tiers={},
                updated_at=at,
            )
            .returning(*WINDOW)
        )
        row = connection.execute(pending).one_or_none()
        if row is None:
            return None
        stale = and_(chunk_refs.c.tenant == tenant, chunk_refs.c.window_name == name)
        connection.execute(delete(chunk_refs).where(stale))
        return window_of(row)

    @reading
    def snapshot(self, connection: Connection, tenant: str, snapshot_id: str) -> Snapshot:
        return snapshots.read(connection, tenant, snapshot_id)

    @reading
    def chunks(self, connection: Connection, tenant: str, name: str) -> list[Chunk]:
        by_position = (
            select(chunk_refs.c.hash, chunk_refs.c.size_bytes)
            .where(chunk_refs.c.tenant == tenant, chunk_refs.c.window_name == name)
            .order_by(chunk_refs.c.position)
        )
        return [Chunk(row.hash, row.size_bytes) for row in connection.execute(by_position)]

    @reading
    def dependents(self, connection: Connection, tenant: str, name: str) -> Dependents:
        uid = uid_of(tenant, name)
        heirs = select(windows.c.name).where(windows.c.tenant == tenant, windows.c.parent_uid == uid)
        thawed = select(sessions.c.id).where(
            sessions.c.tenant == tenant,
            sessions.c.thawed_from_uid == uid,
            sessions.c.state.in_(LIVE_STATES),
        )
        names = connection.execute(heirs.order_by(windows.c.name)).scalars().all()
        ids = connection.execute(thawed.order_by(sessions.c.id)).scalars().all()
        return Dependents(tuple(names), tuple(ids))

    @reading
    def chunks_of_other_windows(self, connection: Connection, tenant: str, name: str) -> set[str]:
        mine, theirs = chunk_refs.alias("mine"), chunk_refs.alias("theirs")
        elsewhere = (
            select(theirs.c.hash)
            .where(
                theirs.c.tenant == mine.c.tenant,
                theirs.c.cache_salt == mine.c.cache_salt,
                theirs.c.hash == mine.c.hash,
                theirs.c.window_name != mine.c.window_name,
            )
            .exists()
        )
        shared = select(mine.c.hash).where(mine.c.tenant == tenant, mine.c.window_name == name, elsewhere)
        return set(connection.execute(shared).scalars())

    @writing
    def remove_window(self, connection: Connection, tenant: str, name: str) -> None:
        row = _row(connection, tenant, name, lock=True)
        if row is None:
            raise _not_found(name)
        _remove(connection, tenant, name, row.snapshot_id)
        _forget_frozen_session(connection, tenant, row.session_id)

    @reading
    def pending_windows_of_every_tenant(self, connection: Connection) -> list[Window]:
        """The oldest first."""
        pending = select(*WINDOW).where(windows.c.durability == literal("pending", literal_execute=True))
        rows = connection.execute(pending.order_by(windows.c.created_at, windows.c.name))
        return [window_of(row) for row in rows]


def _canary_values(window: Window, canary: Canary) -> dict[str, Any]:
    return {
        "tenant": window.tenant,
        "snapshot_id": window.snapshot_id,
        "cache_salt": window.cache_salt,
        "content": canary.as_dict(),
    }


def _is(tenant: str, name: str) -> ColumnElement[bool]:
    return and_(windows.c.tenant == tenant, windows.c.name == name)


def _is_pending(tenant: str, name: str) -> ColumnElement[bool]:
    return and_(_is(tenant, name), windows.c.durability == Durability.PENDING.value)


def _not_found(name: str) -> WindowNotFoundError:
    return WindowNotFoundError(f"There is no window '{name}'.", window_name=name)


def _row(connection: Connection, tenant: str, name: str, *, lock: bool = False) -> Row[Any] | None:
    found = select(*WINDOW).where(_is(tenant, name))
    return connection.execute(found.with_for_update() if lock else found).one_or_none()


def _finished(connection: Connection, tenant: str, name: str) -> Window:
    row = _row(connection, tenant, name)
    if row is None or row.durability != Durability.DURABLE.value:
        raise WindowNotFoundError(f"There is no window '{name}' being stored.", window_name=name)
    return window_of(row)


def _uid_of_parent(connection: Connection, window: Window) -> Any:
    """The session's own origin, as recorded when it was thawed, whoever has the name today."""
    origin = select(sessions.c.thawed_from, sessions.c.thawed_from_uid).where(
        sessions.c.tenant == window.tenant, sessions.c.id == window.session_id
    )
    session = connection.execute(origin).one_or_none()
    if session is None:
        raise SessionNotFoundError(
            f"There is no session '{window.session_id}'.", session_id=window.session_id
        )
    if window.parent_window is None:
        return None
    if window.parent_window == session.thawed_from:
        return session.thawed_from_uid
    return uid_of(window.tenant, window.parent_window)


def _add(connection: Connection, window: Window, *, snapshot_id: str, parent_uid: Any) -> Window:
    values = window_values(window) | {
        "uid": uuid4().hex,
        "snapshot_id": snapshot_id,
        "parent_uid": parent_uid,
    }
    try:
        row = connection.execute(insert(windows).values(values).returning(*WINDOW)).one()
    except IntegrityError as taken:
        raise WindowAlreadyExistsError(
            f"There is a window '{window.name}' already.", window_name=window.name
        ) from taken
    connection.execute(insert(window_search).values(search.search_values(window)))
    return window_of(row)


def _refer(connection: Connection, window: Window, chunks: Sequence[Chunk]) -> None:
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


def _share_references(connection: Connection, tenant: str, source: str, clone: str) -> None:
    columns = [column for column in chunk_refs.c if column.name != "window_name"]
    theirs = select(literal(clone), *columns).where(
        chunk_refs.c.tenant == tenant, chunk_refs.c.window_name == source
    )
    connection.execute(
        insert(chunk_refs).from_select(["window_name", *(column.name for column in columns)], theirs)
    )


def _forget_frozen_session(connection: Connection, tenant: str, session_id: str) -> None:
    """A frozen session whose last window is gone has nothing to come back from: it goes, with its tokens."""
    left = select(windows.c.name).where(windows.c.tenant == tenant, windows.c.session_id == session_id)
    ended = delete(sessions).where(
        sessions.c.tenant == tenant,
        sessions.c.id == session_id,
        sessions.c.state == SessionState.FROZEN.value,
        ~left.exists(),
    )
    connection.execute(ended)  # its tokens go by cascade


def _remove(connection: Connection, tenant: str, name: str, snapshot_id: str) -> None:
    snapshots.lock(connection, tenant, snapshot_id)
    connection.execute(delete(windows).where(_is(tenant, name)))
    snapshots.drop_unused(connection, tenant, snapshot_id)
