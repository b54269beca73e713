"""Windows: clones, dependents, chunks, removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Integer, and_, bindparam, delete, literal, literal_column, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.registry.scopes import in_force_until_committed
from cwm.adapters.sql.registry.sessions import LIVE_STATES, uid_of
from cwm.adapters.sql.registry.window_writes import (
    add,
    begin,
    guaranteed_bytes,
    intent_about,
    is_still,
    is_window,
    not_found,
    outlive_last_window,
    owe,
    referred_to,
    remove,
    require_quota,
    same_content,
    share_references,
    window_row,
)
from cwm.adapters.sql.rows import WINDOW, at_a_time, window_of
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.sessions import canaries, sessions
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.adapters.sql.vault import Vault
from cwm.adapters.sql.window_list import search as window_search
from cwm.adapters.sql.window_list import terms as window_terms
from cwm.domain.canary import Canary, Origin
from cwm.domain.errors import StorageReadError
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.window import Chunk, Durability, Snapshot, Window, WindowList, WindowQuery
from cwm.ports.registry import Dependents

# Built once, because building it takes longer than running it.
_CHUNKS: Final = (
    select(chunk_refs.c.hash, chunk_refs.c.size_bytes, chunk_refs.c.cache_salt)
    .where(chunk_refs.c.tenant == bindparam("of_tenant"), chunk_refs.c.window_name == bindparam("of_name"))
    .order_by(chunk_refs.c.position)
)

# Written out, as its index has it: a database need not see that a parameter is the same.
_FAILED: Final = (
    select(*WINDOW)
    .where(windows.c.tenant == bindparam("of_tenant"))
    .where(windows.c.durability == literal_column(f"'{Durability.FAILED.value}'"))
    .order_by(windows.c.created_at.desc(), windows.c.name.desc())
    .limit(bindparam("most", type_=Integer))
)
_FAILED_OF: Final = _FAILED.where(windows.c.circle.in_(bindparam("circles", expanding=True)))


class WindowRecords:
    """A new window with a deleted window's name is a different window and inherits no dependents.

    Lineage uses a hidden uid, which is never reused. ``parent_window`` and ``thawed_from`` keep the deleted
    window's name, and the freeze of a session passes on the uid that its thaw recorded.
    """

    database: Database
    holder: str
    vault: Vault

    @writing
    def add_clone(
        self, connection: Connection, clone: Window, source: str, quota_bytes: int | None = None
    ) -> tuple[Window, Intent]:
        row = window_row(connection, clone.tenant, source, lock=True)
        if row is None:
            raise not_found(source)
        if not same_content(row, clone) or row.durability != clone.durability.value:
            raise StorageReadError(
                f"Window '{source}' changed meanwhile; look at it and clone it again.", window_name=source
            )
        uid = uid_of(clone.tenant, source)
        stored_clone = add(connection, clone, snapshot_id=row.snapshot_id, parent_uid=uid)
        share_references(connection, clone.tenant, source, clone.name)
        require_quota(connection, stored_clone, quota_bytes)
        intent = begin(connection, intent_about(stored_clone, Operation.CLONE, self.holder, clone.created_at))
        window_terms.count(connection, stored_clone, 1)
        return stored_clone, intent

    @writing
    def rename_window(self, connection: Connection, window: Window, name: str, at: datetime) -> Window:
        tenant, old_name = window.tenant, window.name
        row = window_row(connection, tenant, old_name, lock=True)
        if row is None:
            raise not_found(old_name)
        current = window_of(row)
        under_way = select(intents.c.id).where(
            intents.c.tenant == tenant,
            intents.c.window_name == old_name,
            intents.c.operation != Operation.RELEASE.value,
        )
        if current.created_at != window.created_at or connection.execute(under_way).first() is not None:
            raise StorageReadError(
                f"Window '{old_name}' changed meanwhile, or is being stored or thawed; rename it after that.",
                window_name=old_name,
            )
        this = is_window(tenant, old_name)
        uid, parent_uid = connection.execute(select(windows.c.uid, windows.c.parent_uid).where(this)).one()
        renamed = add(
            connection,
            replace(current, name=name, automatic=False, updated_at=at),
            snapshot_id=current.snapshot_id,
            parent_uid=parent_uid,
            uid=uid,
        )
        its = and_(chunk_refs.c.tenant == tenant, chunk_refs.c.window_name == old_name)
        connection.execute(update(chunk_refs).where(its).values(window_name=name))
        window_terms.delist(connection, current)
        connection.execute(delete(windows).where(this))
        thawed = and_(sessions.c.tenant == tenant, sessions.c.thawed_from_uid == uid)
        connection.execute(update(sessions).where(thawed).values(thawed_from=name))
        heirs = and_(windows.c.tenant == tenant, windows.c.parent_uid == uid)
        connection.execute(update(windows).where(heirs).values(parent_window=name))
        return renamed

    @writing
    def remove_window(
        self, connection: Connection, window: Window, at: datetime, debt: Debt | None = None
    ) -> Intent | None:
        tenant, name = window.tenant, window.name
        salt_scope = in_force_until_committed(connection, tenant, window.salt_scope)
        row = window_row(connection, tenant, name, lock=True)
        if row is None:
            raise not_found(name)
        current = window_of(row)
        if not same_content(row, window) or _cache_facts(current) != _cache_facts(window):
            raise StorageReadError(
                f"Window '{name}' changed meanwhile; look at it and delete it again.", window_name=name
            )
        window = current
        release = owe(connection, window, debt, self.holder, at)
        remove(connection, window)
        outlive_last_window(connection, self.vault, tenant, window.session_id, salt_scope, at)
        window_terms.count(connection, window, -1)
        return release

    @writing
    def proven(self, connection: Connection, window: Window, at: datetime) -> None:
        durable = and_(
            windows.c.tenant == window.tenant,
            is_still(window),
            windows.c.durability == Durability.DURABLE.value,
        )
        connection.execute(update(windows).where(durable).values(proven_at=at))

    @writing
    def share_window(self, connection: Connection, window: Window, circle: str, at: datetime) -> bool:
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None or row.created_at != window.created_at or not same_content(row, window):
            return False
        before = window_of(row)
        window_terms.delist(connection, before)
        this = is_window(window.tenant, window.name)
        connection.execute(update(windows).where(this).values(circle=circle, updated_at=at))
        after = replace(before, circle=circle)
        window_terms.enlist(connection, after)
        window_terms.count(connection, before, -1)
        window_terms.count(connection, after, 1)
        return True

    @writing
    def keep_window(
        self, connection: Connection, window: Window, until: datetime | None, at: datetime
    ) -> bool:
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None or row.created_at != window.created_at or not same_content(row, window):
            return False
        this = is_window(window.tenant, window.name)
        connection.execute(update(windows).where(this).values(expires_at=until, updated_at=at))
        return True

    @glancing
    def window(self, connection: Connection, tenant: str, name: str) -> Window | None:
        row = window_row(connection, tenant, name)
        return None if row is None else window_of(row)

    @reading
    def windows(self, connection: Connection, tenant: str, query: WindowQuery) -> WindowList:
        """Names sort by byte; a search ignores case by Unicode case folding."""
        return window_search.find(connection, tenant, query)

    @reading
    def failed_windows(
        self, connection: Connection, tenant: str, most: int, circles: frozenset[str] | None = None
    ) -> list[Window]:
        which = {"of_tenant": tenant, "most": most}
        if circles is None:
            return [window_of(row) for row in connection.execute(_FAILED, which)]
        return [
            window_of(row) for row in connection.execute(_FAILED_OF, which | {"circles": sorted(circles)})
        ]

    @reading
    def canary(self, connection: Connection, tenant: str, snapshot_id: str, cache_salt: str) -> Canary | None:
        query = select(canaries.c.content, canaries.c.origin, canaries.c.snapshot_id).where(
            canaries.c.tenant == tenant,
            canaries.c.snapshot_id.in_(self.vault.names(tenant, snapshot_id)),
            canaries.c.cache_salt == cache_salt,
        )
        row = connection.execute(query).first()
        if row is None:
            return None
        content = snapshots.canary_content(row.content, self.vault, tenant, row.snapshot_id, cache_salt)
        return Canary.from_dict(content, row.origin)

    @writing
    def record_canary(self, connection: Connection, window: Window, canary: Canary) -> bool:
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None or not same_content(row, window):
            return False
        snapshots.put_canary(connection, (window.tenant, row.snapshot_id, row.cache_salt), canary, self.vault)
        return True

    @writing
    def doubt_windows(self, connection: Connection, window: Window, hashes: Sequence[str]) -> list[str]:
        tenant, salt = window.tenant, window.cache_salt
        names = sorted(
            {
                name
                for part in at_a_time(hashes)
                for name in connection.execute(
                    select(chunk_refs.c.window_name)
                    .where(
                        chunk_refs.c.tenant == tenant,
                        chunk_refs.c.cache_salt == salt,
                        chunk_refs.c.hash.in_(part),
                    )
                    .distinct()
                ).scalars()
            }
        )
        for part in at_a_time(names):
            these = and_(windows.c.tenant == tenant, windows.c.name.in_(part))
            theirs = select(windows.c.snapshot_id).where(these)
            connection.execute(
                update(canaries)
                .where(canaries.c.tenant == tenant, canaries.c.cache_salt == salt)
                .where(canaries.c.snapshot_id.in_(theirs))
                .values(origin=Origin.UNPROVEN.value)
            )
            connection.execute(update(windows).where(these).values(proven_at=None))
        doubted = and_(sessions.c.tenant == tenant, sessions.c.salt_scope == window.salt_scope)
        connection.execute(
            update(sessions).where(doubted, sessions.c.proven_tokens > 0).values(proven_tokens=0)
        )
        return [name for name in names if name != window.name]

    @reading
    def snapshot(self, connection: Connection, tenant: str, snapshot_id: str) -> Snapshot:
        return snapshots.read(connection, tenant, snapshot_id, self.vault)

    @reading
    def chunks(self, connection: Connection, tenant: str, name: str) -> list[Chunk]:
        rows = connection.execute(_CHUNKS, {"of_tenant": tenant, "of_name": name})
        return [Chunk(row.hash, row.size_bytes) for row in rows]

    @reading
    def dependents(
        self, connection: Connection, tenant: str, name: str, circles: frozenset[str] | None = None
    ) -> Dependents:
        """Windows and live sessions that come from this window, including sessions that are being thawed."""
        uid = uid_of(tenant, name)
        heirs = select(windows.c.name, windows.c.circle).where(
            windows.c.tenant == tenant, windows.c.parent_uid == uid
        )
        thawed = select(sessions.c.id, sessions.c.circle).where(
            sessions.c.tenant == tenant,
            sessions.c.thawed_from_uid == uid,
            sessions.c.state.in_(LIVE_STATES),
        )
        # Nobody's yet.
        thawing = select(intents.c.session_id, literal("")).where(
            intents.c.tenant == tenant,
            intents.c.window_name == name,
            intents.c.operation == Operation.THAW.value,
        )
        of_windows = connection.execute(heirs.order_by(windows.c.name)).all()
        of_sessions = sorted({row[0]: row[1] for row in connection.execute(thawing.union(thawed))}.items())
        names, ids = (
            tuple(each for each, circle in rows if circles is None or circle in circles)
            for rows in (of_windows, of_sessions)
        )
        return Dependents(names, ids, len(of_windows) + len(of_sessions) - len(names) - len(ids))

    @reading
    def chunks_of_other_windows(self, connection: Connection, tenant: str, name: str) -> set[str]:
        # Several statements, because in one SQLite would scan every chunk of the tenant.
        mine: dict[str, list[str]] = {}
        for row in connection.execute(_CHUNKS, {"of_tenant": tenant, "of_name": name}):
            mine.setdefault(row.cache_salt, []).append(row.hash)
        shared: set[str] = set()
        for salt, hashes in mine.items():
            shared |= referred_to(connection, tenant, salt, hashes, but_by=name)
        return shared

    @reading
    def guaranteed_bytes(self, connection: Connection, tenant: str) -> int:
        return guaranteed_bytes(connection, tenant)


def _cache_facts(window: Window) -> tuple[datetime, Durability, bool]:
    """Besides the content, the fields that decide what the window has in the cache, and identify this very window."""
    return window.created_at, window.durability, window.pinned
