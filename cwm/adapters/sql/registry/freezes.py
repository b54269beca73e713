"""Transactions of a freeze: from the intent over the pending window to the durable one, or back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry import snapshots
from cwm.adapters.sql.registry.scopes import in_force_until_committed
from cwm.adapters.sql.registry.sessions import LIVE_STATES
from cwm.adapters.sql.registry.window_writes import (
    add,
    begin,
    end,
    forget_references,
    intent_about,
    is_pending,
    is_still,
    owe,
    refer,
    remove,
    require_quota,
    same_content,
    window_row,
)
from cwm.adapters.sql.rows import WINDOW, window_of
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import writing
from cwm.adapters.sql.vault import Vault
from cwm.adapters.sql.window_list import terms as window_terms
from cwm.domain.canary import Canary
from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import SessionNotActiveError, SessionNotFoundError, WindowNotFoundError
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.session import SessionState
from cwm.domain.window import Durability, Window
from cwm.ports.registry import StoredChunks


class FreezeRecords:
    """``holder`` is the process that owns the intents of these transactions."""

    database: Database
    holder: str
    vault: Vault

    @writing
    def begin_freeze(
        self,
        connection: Connection,
        window: Window,
        token_ids: Sequence[int],
        session_revision: int | None,
        session_created_at: datetime | None = None,
    ) -> Intent:
        snapshot_id = snapshots.keep(connection, window.tenant, token_ids, self.vault)
        parent_window, parent_uid = _parent(connection, window)
        window = replace(window, parent_window=parent_window)
        pending = add(connection, window, snapshot_id=snapshot_id, parent_uid=parent_uid)
        _freeze_session(connection, window, session_revision, session_created_at)
        intent = begin(connection, intent_about(pending, Operation.FREEZE, self.holder, window.created_at))
        window_terms.count(connection, pending, 1)
        return intent

    @writing
    def finish_freeze(
        self,
        connection: Connection,
        window: Window,
        stored: StoredChunks,
        at: datetime,
        canary: Canary | None = None,
        quota_bytes: int | None = None,
    ) -> Window:
        """Make the window durable; if another replica did so meanwhile, return that window."""
        statement = (
            update(windows)
            .where(is_pending(window))
            .values(
                durability=Durability.DURABLE.value,
                failure=None,
                block_count=len(stored.chunks),
                total_size_bytes=stored.total_size_bytes,
                storage_tier=stored.storage_tier.value,
                tiers=stored.tiers,
                updated_at=at,
                proven_at=None if window.automatic else at,
            )
            .returning(*WINDOW)
        )
        row = connection.execute(statement).one_or_none()
        if row is None:
            return _finished(connection, window)
        durable_window = window_of(row)
        window_terms.resize(connection, durable_window)
        refer(connection, durable_window, stored.chunks)
        require_quota(connection, durable_window, quota_bytes)
        if canary is not None:
            key = (durable_window.tenant, durable_window.snapshot_id, durable_window.cache_salt)
            snapshots.put_canary(connection, key, canary, self.vault)
        end(connection, window.tenant, window.name)
        return durable_window

    @writing
    def fail_freeze(
        self,
        connection: Connection,
        window: Window,
        reason: str,
        at: datetime,
        debt: Debt | None = None,
    ) -> Intent | None:
        """Mark the freeze as failed, if it is still the same window and still pending."""
        statement = (
            update(windows)
            .where(is_pending(window))
            .values(durability=Durability.FAILED.value, failure=reason, updated_at=at, pinned=False)
            .returning(*WINDOW)
        )
        row = connection.execute(statement).one_or_none()
        if row is None:
            return None
        end(connection, window.tenant, window.name)
        return owe(connection, window_of(row), debt, self.holder, at)

    @writing
    def undo_freeze(
        self,
        connection: Connection,
        window: Window,
        session_state: SessionState | None,
        debt: Debt | None = None,
    ) -> Intent | None:
        """Remove the window and restore its session, if it is still the same window and still pending."""
        salt_scope = in_force_until_committed(connection, window.tenant, window.salt_scope)
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None or row.durability != Durability.PENDING.value or not same_content(row, window):
            return None
        tenant, window = window.tenant, window_of(row)
        release = owe(connection, window, debt, self.holder, window.created_at)
        remove(connection, window)
        if session_state is not None:
            connection.execute(
                update(sessions)
                .where(
                    sessions.c.tenant == tenant,
                    sessions.c.id == window.session_id,
                    sessions.c.state == SessionState.FROZEN.value,
                )
                .values(state=session_state.value, frozen_at=None, salt_scope=salt_scope)
            )
        window_terms.count(connection, window, -1)
        return release

    @writing
    def begin_quarantine(self, connection: Connection, window: Window, at: datetime) -> Intent | None:
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None or not same_content(row, window):
            return None
        end(connection, window.tenant, window.name)
        return begin(connection, intent_about(window_of(row), Operation.QUARANTINE, self.holder, at))

    @writing
    def store_again(
        self,
        connection: Connection,
        window: Window,
        salt_scope: str,
        cache_salt: str,
        identity: EngineIdentity,
        at: datetime,
        *,
        pinned: bool,
        debt: Debt | None = None,
    ) -> tuple[Window, Intent, Intent | None] | None:
        """Make the window pending again under another salt, and drop its chunk references in the same transaction."""
        tenant, name = window.tenant, window.name
        statement = (
            update(windows)
            .where(is_still(window))
            .values(
                durability=Durability.PENDING.value,
                salt_scope=salt_scope,
                cache_salt=cache_salt,
                identity=identity.as_dict(),
                pinned=pinned,
                tiers={},
                updated_at=at,
            )
            .returning(*WINDOW)
        )
        row = connection.execute(statement).one_or_none()
        if row is None:
            return None
        pending_window = window_of(row)
        forget_references(connection, tenant, name)
        end(connection, tenant, name)
        freezing = begin(connection, intent_about(pending_window, Operation.FREEZE, self.holder, at))
        return pending_window, freezing, owe(connection, window, debt, self.holder, at)


def _freeze_session(
    connection: Connection, window: Window, revision: int | None, created_at: datetime | None
) -> None:
    """Mark a live session as frozen; an expired one stays expired, and with no ``revision`` any as it is. CWM-3002."""
    same = () if created_at is None else (sessions.c.created_at == created_at,)
    here = (
        sessions.c.tenant == window.tenant,
        sessions.c.id == window.session_id,
        sessions.c.salt_scope == window.salt_scope,
    )
    if revision is None:
        undeleted = select(sessions.c.id).where(*here, sessions.c.state != SessionState.DELETED.value)
        if connection.execute(undeleted.with_for_update()).one_or_none() is None:
            raise _moved_on(window)
        return
    current = () if window.turn_id is None else (sessions.c.current_turn == window.turn_id,)
    conditions = (*same, *here, *current, sessions.c.revision == revision)
    statement = (
        update(sessions)
        .where(*conditions, sessions.c.state.in_(LIVE_STATES))
        .values(state=SessionState.FROZEN.value, frozen_at=window.created_at, updated_at=window.created_at)
    )
    expired = select(sessions.c.id).where(*conditions, sessions.c.state == SessionState.EXPIRED.value)
    if connection.execute(statement).rowcount != 1 and connection.execute(expired).one_or_none() is None:
        raise _moved_on(window)


def _moved_on(window: Window) -> SessionNotActiveError:
    return SessionNotActiveError(
        f"Session '{window.session_id}' moved on or is no longer active; look at it and freeze again.",
        session_id=window.session_id,
    )


def _finished(connection: Connection, window: Window) -> Window:
    row = window_row(connection, window.tenant, window.name)
    content = (Durability.DURABLE.value, window.session_id, window.snapshot_id)
    if row is None or (row.durability, row.session_id, row.snapshot_id) != content:
        raise WindowNotFoundError(
            f"There is no window '{window.name}' being stored.", window_name=window.name
        )
    return window_of(row)


def _parent(connection: Connection, window: Window) -> tuple[str | None, str | None]:
    """Name and uid of the window that the session was thawed from. Locks the session, so that a rename waits."""
    origin = select(sessions.c.thawed_from, sessions.c.thawed_from_uid).where(
        sessions.c.tenant == window.tenant, sessions.c.id == window.session_id
    )
    session = connection.execute(origin.with_for_update()).one_or_none()
    if session is None:
        raise SessionNotFoundError(
            f"There is no session '{window.session_id}'.", session_id=window.session_id
        )
    return session.thawed_from, session.thawed_from_uid
