"""Queries of upkeep over all tenants: pinned chunks, windows to prove, expired windows, idle sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, not_, or_, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.sessions import IS_LISTED, LIVE_STATES
from cwm.adapters.sql.registry.window_writes import referred_to
from cwm.adapters.sql.rows import SESSION, TURN, WINDOW, session_of, turn_of, window_of
from cwm.adapters.sql.tables.columns import UtcDateTime
from cwm.adapters.sql.tables.sessions import canaries, sessions
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from cwm.adapters.sql.transactions import reading, writing
from cwm.adapters.sql.turns.sealed import opened_turn
from cwm.adapters.sql.vault import Vault
from cwm.domain.autosave import UnsavedQuery
from cwm.domain.canary import Origin
from cwm.domain.session import BY_CONTENT, FOUND_BY, Session, SessionsSince, SessionState
from cwm.domain.turn import Turn, TurnState
from cwm.domain.window import Durability, Retention, Window
from cwm.ports.registry import Stock

_ANY_TURN: Final = select(turns.c.id).where(
    turns.c.tenant == sessions.c.tenant, turns.c.session_id == sessions.c.id
)
_UNANSWERED: Final = and_(not_(sessions.c.listed), ~_ANY_TURN.exists())


class UpkeepRecords:
    database: Database
    vault: Vault

    @reading
    def salts_of_every_tenant(self, connection: Connection) -> list[str]:
        return list(
            connection.execute(select(windows.c.cache_salt).distinct().order_by("cache_salt")).scalars()
        )

    @reading
    def pinned_chunks_of_every_tenant(self, connection: Connection, cache_salt: str) -> dict[str, int]:
        window = and_(windows.c.tenant == chunk_refs.c.tenant, windows.c.name == chunk_refs.c.window_name)
        pinned = (
            select(chunk_refs.c.hash, func.count())
            .join(windows, window)
            .where(chunk_refs.c.cache_salt == cache_salt, windows.c.pinned)
            .group_by(chunk_refs.c.hash)
        )
        return {row[0]: row[1] for row in connection.execute(pinned)}

    @reading
    def windows_of_every_tenant(self, connection: Connection, cache_salt: str) -> list[Window]:
        under = select(*WINDOW).where(windows.c.cache_salt == cache_salt).order_by(windows.c.name)
        return [window_of(row) for row in connection.execute(under)]

    @reading
    def unreferenced(
        self, connection: Connection, tenant: str, cache_salt: str, hashes: Sequence[str]
    ) -> list[str]:
        referred = referred_to(connection, tenant, cache_salt, hashes)
        return [name for name in hashes if name not in referred]

    @reading
    def windows_to_prove_of_every_tenant(
        self, connection: Connection, limit: int, before: datetime
    ) -> list[Window]:
        failed = windows.c.durability == Durability.FAILED.value
        durable = and_(windows.c.durability == Durability.DURABLE.value, windows.c.block_count > 0)
        looked_at = case((failed, windows.c.updated_at), else_=windows.c.proven_at)
        since = func.coalesce(looked_at, windows.c.created_at, type_=UtcDateTime)
        due = and_(windows.c.retention == Retention.GUARANTEED.value, or_(durable, failed), since < before)
        longest_ago = select(*WINDOW).where(due).order_by(since, windows.c.name).limit(limit)
        return [window_of(row) for row in connection.execute(longest_ago)]

    @reading
    def unproven_windows_of_every_tenant(self, connection: Connection, limit: int) -> list[Window]:
        its = and_(
            canaries.c.tenant == windows.c.tenant,
            canaries.c.snapshot_id == windows.c.snapshot_id,
            canaries.c.cache_salt == windows.c.cache_salt,
        )
        proven = canaries.c.origin.in_([origin.value for origin in Origin if origin.is_proven])
        stored = and_(windows.c.durability == Durability.DURABLE.value, windows.c.block_count > 0)
        due = select(*WINDOW).where(stored, ~select(canaries.c.origin).where(its, proven).exists())
        # The newest first: it is the likeliest to be thawed.
        newest = due.order_by(windows.c.created_at.desc(), windows.c.name).limit(limit)
        return [window_of(row) for row in connection.execute(newest)]

    @reading
    def expired_windows_of_every_tenant(
        self, connection: Connection, at: datetime, limit: int
    ) -> list[Window]:
        stored = windows.c.durability != Durability.PENDING.value
        due = select(*WINDOW).where(windows.c.expires_at <= at, stored).order_by(windows.c.expires_at)
        return [window_of(row) for row in connection.execute(due.limit(limit))]

    @reading
    def idle_sessions_of_every_tenant(self, connection: Connection, query: SessionsSince) -> list[Session]:
        return _unchanged(connection, query, LIVE_STATES)

    @reading
    def unsaved_sessions_of_every_tenant(self, connection: Connection, query: UnsavedQuery) -> list[Session]:
        its = and_(windows.c.tenant == sessions.c.tenant, windows.c.session_id == sessions.c.id)
        last = select(windows.c.token_count, windows.c.created_at).where(its, windows.c.automatic)
        last = last.order_by(windows.c.created_at.desc()).limit(1)
        saved = last.with_only_columns(windows.c.token_count).scalar_subquery()
        saved_at = last.with_only_columns(windows.c.created_at).scalar_subquery()
        grown = sessions.c.token_count - func.coalesce(saved, sessions.c.branch_token, 0)
        reasons = []
        if query.tokens is not None:
            reasons.append(func.abs(grown) >= query.tokens)
        if query.saved_before is not None:
            at = func.coalesce(saved_at, sessions.c.created_at, type_=UtcDateTime)
            reasons.append(at < query.saved_before)
        due = select(*SESSION).where(
            sessions.c.state == SessionState.ACTIVE.value,
            sessions.c.current_turn.is_not(None),
            sessions.c.tenant.not_in(query.but),
            or_(*reasons),
            ~select(windows.c.name).where(its, windows.c.turn_id == sessions.c.current_turn).exists(),
        )
        if query.tenant is not None:
            due = due.where(sessions.c.tenant == query.tenant)
        if query.by_content is not None:
            due = due.where(_found(by_content=query.by_content))
        if query.used_since is not None:
            due = due.where(sessions.c.updated_at >= query.used_since)
        if query.used_before is not None:
            due = due.where(sessions.c.updated_at < query.used_before)
        rows = connection.execute(due.order_by(sessions.c.updated_at).limit(query.limit))
        return [session_of(row) for row in rows]

    @reading
    def automatic_windows(self, connection: Connection, tenant: str, session_id: str) -> list[Window]:
        automatic = select(*WINDOW).where(
            windows.c.tenant == tenant, windows.c.session_id == session_id, windows.c.automatic
        )
        rows = connection.execute(automatic.order_by(windows.c.created_at.desc(), windows.c.name))
        return [window_of(row) for row in rows]

    @reading
    def windows_of_session(self, connection: Connection, tenant: str, session_id: str) -> list[Window]:
        frozen = select(*WINDOW).where(windows.c.tenant == tenant, windows.c.session_id == session_id)
        rows = connection.execute(frozen.order_by(windows.c.created_at.desc(), windows.c.name).limit(200))
        return [window_of(row) for row in rows]

    @reading
    def expired_sessions_of_every_tenant(self, connection: Connection, query: SessionsSince) -> list[Session]:
        return _unchanged(connection, query, (SessionState.EXPIRED.value,))

    @reading
    def unanswered_sessions_of_every_tenant(
        self, connection: Connection, before: datetime, limit: int
    ) -> list[Session]:
        statement = select(*SESSION).where(_UNANSWERED, sessions.c.updated_at < before)
        return [session_of(row) for row in connection.execute(statement.limit(limit))]

    @writing
    def forget_unanswered(self, connection: Connection, session: Session) -> bool:
        this = and_(
            sessions.c.tenant == session.tenant,
            sessions.c.id == session.id,
            sessions.c.updated_at == session.updated_at,
        )
        return connection.execute(delete(sessions).where(this, _UNANSWERED)).rowcount == 1

    @reading
    def windows_about(self, connection: Connection, tenant: str, owner: str) -> list[Window]:
        theirs = select(sessions.c.id).where(sessions.c.tenant == tenant, sessions.c.owner == owner)
        about = select(*WINDOW).where(
            windows.c.tenant == tenant, or_(windows.c.owner == owner, windows.c.session_id.in_(theirs))
        )
        return [window_of(row) for row in connection.execute(about.order_by(windows.c.name))]

    @reading
    def turns_elsewhere(self, connection: Connection, tenant: str, author: str) -> list[Turn]:
        session = and_(sessions.c.tenant == turns.c.tenant, sessions.c.id == turns.c.session_id)
        elsewhere = (
            select(*TURN)
            .join(sessions, session)
            .where(
                turns.c.tenant == tenant,
                turns.c.author == author,
                turns.c.state == TurnState.ENDED.value,
                sessions.c.owner != author,
            )
        )
        rows = connection.execute(elsewhere.order_by(turns.c.asked_at, turns.c.id))
        return [opened_turn(self.vault, turn_of(row)) for row in rows]

    @reading
    def stock_of_every_tenant(self, connection: Connection) -> Stock:
        by_state = select(sessions.c.state, func.count()).where(IS_LISTED).group_by(sessions.c.state)
        by_durability = select(windows.c.durability, func.count()).group_by(windows.c.durability)
        return Stock(
            counts_by_name(connection, by_state, SessionState),
            counts_by_name(connection, by_durability, Durability),
        )


def _unchanged(connection: Connection, query: SessionsSince, states: Sequence[str]) -> list[Session]:
    """Those unused for longest first."""
    statement = select(*SESSION).where(sessions.c.state.in_(states), sessions.c.updated_at < query.since)
    if query.tenant is not None:
        statement = statement.where(sessions.c.tenant == query.tenant)
    if query.but:
        statement = statement.where(sessions.c.tenant.not_in(query.but))
    if query.by_content is not None:
        statement = statement.where(_found(by_content=query.by_content))
    rows = connection.execute(statement.order_by(sessions.c.updated_at).limit(query.limit))
    return [session_of(row) for row in rows]


def _found(*, by_content: bool) -> ColumnElement[bool]:
    """Sessions that were found by what was said, or all others."""
    found_by = func.coalesce(sessions.c.metadata[FOUND_BY].as_string(), "")
    return found_by == BY_CONTENT if by_content else found_by != BY_CONTENT


def counts_by_name(connection: Connection, by: Select[Any], names: type[StrEnum]) -> dict[str, int]:
    """Counts by name; 0 for names without rows."""
    counts: dict[str, int] = {row[0]: row[1] for row in connection.execute(by)}
    return {name.value: counts.get(name.value, 0) for name in names}
