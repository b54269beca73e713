"""Engines: which sessions each serves, which moves hold a session, which engines are drained, where models are upgraded to."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, or_, select, true, update

from cwm.adapters.sql.clock import now
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.sessions import IS_LISTED, LIVE_STATES
from cwm.adapters.sql.rows import SESSION, insert_into, session_of
from cwm.adapters.sql.tables.gateways import engine_drains, model_upgrades
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turns
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.engine import EngineIdentity
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.principal import Principal
from cwm.domain.session import Session, SessionState
from cwm.domain.upgrade import Upgrade


class EngineRecords:
    database: Database

    @writing
    def settle_session(
        self, connection: Connection, session: Session, engine: str, instead_of: str | None
    ) -> str | None:
        this = _this(session)
        still = sessions.c.engine.is_not_distinct_from(instead_of)
        connection.execute(update(sessions).where(this, still).values(engine=engine, moving_until=None))
        return connection.execute(select(sessions.c.engine).where(this)).scalar_one_or_none()

    @writing
    def set_apart(self, connection: Connection, session: Session, salt_scope: str, cache_salt: str) -> bool:
        statement = update(sessions).where(_this(session)).values(salt_scope=salt_scope, proven_tokens=0)
        turn_id = connection.execute(statement.returning(sessions.c.current_turn)).first()
        if turn_id is None:
            return False
        current = and_(turns.c.tenant == session.tenant, turns.c.id == turn_id[0])
        connection.execute(update(turns).where(current).values(cache_salt=cache_salt))
        return True

    @writing
    def note_proven(self, connection: Connection, session: Session, token_ids: TokenIds) -> None:
        proven = {"proven_tokens": len(token_ids), "proven_digest": digest(token_ids)}
        connection.execute(update(sessions).where(_this(session)).values(proven))

    @writing
    def hold_session(
        self, connection: Connection, session: Session, lease: timedelta, held_until: datetime | None = None
    ) -> datetime | None:
        at = now(connection, None)
        held = sessions.c.moving_until
        free = or_(held.is_(None), held < at) if held_until is None else held == held_until
        here = sessions.c.engine.is_not_distinct_from(session.engine)
        statement = (
            update(sessions).where(_this(session), here, free).values(moving_until=at + lease).returning(held)
        )
        return connection.execute(statement).scalar_one_or_none()

    @writing
    def release_session(self, connection: Connection, session: Session, held_until: datetime) -> None:
        mine = and_(_this(session), sessions.c.moving_until == held_until)
        connection.execute(update(sessions).where(mine).values(moving_until=None))

    @reading
    def served_sessions_of_every_tenant(
        self, connection: Connection, engine: str, limit: int
    ) -> list[Session]:
        return _served(connection, engine, limit)

    @reading
    def served_sessions(self, connection: Connection, tenant: str, engine: str, limit: int) -> list[Session]:
        return _served(connection, engine, limit, tenant)

    @reading
    def session_counts_of_every_tenant(self, connection: Connection) -> dict[str, int]:
        return _counts(connection)

    @reading
    def session_counts(self, connection: Connection, tenant: str) -> dict[str, int]:
        return _counts(connection, tenant)

    @writing
    def drain_engine(self, connection: Connection, engine: str, at: datetime) -> None:
        row = insert_into(connection, engine_drains).values(engine=engine, since=at)
        connection.execute(row.on_conflict_do_nothing())

    @writing
    def undo_drain(self, connection: Connection, engine: str) -> None:
        connection.execute(delete(engine_drains).where(engine_drains.c.engine == engine))

    @reading
    def drained_engines(self, connection: Connection) -> dict[str, datetime]:
        rows = connection.execute(select(engine_drains.c.engine, engine_drains.c.since))
        return {row.engine: row.since for row in rows}

    @writing
    def begin_upgrade(self, connection: Connection, upgrade: Upgrade) -> None:
        this = model_upgrades.c.model == upgrade.model
        row = connection.execute(select(model_upgrades).where(this).with_for_update()).one_or_none()
        if row is not None and _upgrade_of(row).is_to(upgrade.identity):
            return
        by = upgrade.begun_by
        values = {
            "identity": upgrade.identity.as_dict(),
            "since": upgrade.since,
            "begun_by": by and by.subject,
            "begun_by_tenant": by and by.tenant,
        }
        statement = insert_into(connection, model_upgrades).values(model=upgrade.model, **values)
        connection.execute(statement.on_conflict_do_update(index_elements=["model"], set_=values))

    @writing
    def end_upgrade(self, connection: Connection, model: str) -> None:
        connection.execute(delete(model_upgrades).where(model_upgrades.c.model == model))

    @reading
    def upgrades(self, connection: Connection) -> dict[str, Upgrade]:
        return {row.model: _upgrade_of(row) for row in connection.execute(select(model_upgrades))}


def _served(connection: Connection, engine: str, limit: int, tenant: str | None = None) -> list[Session]:
    """Those of every tenant if none is named."""
    whose = true() if tenant is None else sessions.c.tenant == tenant
    query = (
        select(*SESSION)
        .where(whose, sessions.c.engine == engine, sessions.c.state.in_(LIVE_STATES))
        .order_by(sessions.c.updated_at, sessions.c.tenant, sessions.c.id)
        .limit(limit)
    )
    return [session_of(row) for row in connection.execute(query)]


def _counts(connection: Connection, tenant: str | None = None) -> dict[str, int]:
    """Those of every tenant if none is named."""
    whose = true() if tenant is None else sessions.c.tenant == tenant
    query = (
        select(sessions.c.engine, func.count())
        .where(whose, IS_LISTED, sessions.c.engine.is_not(None), sessions.c.state.in_(LIVE_STATES))
        .group_by(sessions.c.engine)
    )
    return {row.engine: row[1] for row in connection.execute(query)}


def _upgrade_of(row: Row[Any]) -> Upgrade:
    by = None if row.begun_by is None else Principal(row.begun_by_tenant, row.begun_by)
    return Upgrade(row.model, EngineIdentity.from_dict(row.identity), row.since, by)


def _this(session: Session) -> ColumnElement[bool]:
    return and_(
        sessions.c.tenant == session.tenant,
        sessions.c.id == session.id,
        sessions.c.created_at == session.created_at,
        sessions.c.state != SessionState.DELETED.value,
    )
