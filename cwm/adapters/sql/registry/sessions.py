"""Sessions and the token ids of their last turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    ScalarSelect,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.packed import compress, restore
from cwm.adapters.sql.registry.scopes import in_force_until_committed
from cwm.adapters.sql.registry.snapshots import put, upsert
from cwm.adapters.sql.registry.window_writes import end_one
from cwm.adapters.sql.rows import SESSION, intent_values, session_of, session_values
from cwm.adapters.sql.tables.columns import UtcDateTime
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.sessions import session_tokens, sessions
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import glancing, reading, writing, writing_at_once
from cwm.domain.errors import (
    SessionAlreadyExistsError,
    SessionNotActiveError,
    SessionNotFoundError,
    StorageCorruptionError,
)
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.prefix import TokenIds, digest
from cwm.domain.session import LIVE, Session, SessionQuery, SessionState
from cwm.domain.window import Durability

HEAD_TOKENS: Final = 16
LIVE_STATES: Final = tuple(sorted(state.value for state in LIVE))

# Statements of every turn and every list, built once: SQLAlchemy takes longer to build and look one up than SQLite to run it.
_THIS: Final = and_(sessions.c.tenant == bindparam("of_tenant"), sessions.c.id == bindparam("of_id"))
_FOUND: Final = select(*SESSION).where(_THIS)
_FOUND_UNDELETED: Final = _FOUND.where(sessions.c.state != SessionState.DELETED.value)
# Lists omit metadata, which is most of a session's row.
_LISTED: Final = tuple(column for column in SESSION if column is not sessions.c.metadata)
_NEWEST: Final = (
    select(*_LISTED)
    .where(sessions.c.tenant == bindparam("of_tenant"), sessions.c.state != SessionState.DELETED.value)
    .order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
    .limit(bindparam("most"))
)
_IN_STATES: Final = sessions.c.state.in_(bindparam("of_states", expanding=True))
_AFTER: Final = and_(
    sessions.c.created_at <= bindparam("after_time", type_=UtcDateTime),
    or_(
        sessions.c.created_at < bindparam("after_time", type_=UtcDateTime),
        sessions.c.id < bindparam("after_id"),
    ),
)
_TURN: Final = (
    update(sessions)
    .where(
        _THIS,
        sessions.c.state.in_(LIVE_STATES),
        sessions.c.revision == func.coalesce(bindparam("at_revision", type_=Integer), sessions.c.revision),
        sessions.c.created_at
        == func.coalesce(bindparam("made_at", type_=UtcDateTime), sessions.c.created_at),
    )
    .values(
        state=SessionState.ACTIVE.value,
        token_count=bindparam("to_token_count"),
        head=bindparam("to_head"),
        revision=sessions.c.revision + 1,
        updated_at=bindparam("to_updated_at"),
        metadata=func.coalesce(bindparam("to_metadata", type_=JSON(none_as_null=True)), sessions.c.metadata),
    )
    .returning(*SESSION)
)


def head_of(token_ids: Sequence[int]) -> str | None:
    """A short digest of the first 16 ids, an engine's smallest chunk; shorter sessions share no KV and have none."""
    return digest(token_ids[:HEAD_TOKENS])[:32] if len(token_ids) >= HEAD_TOKENS else None


def uid_of(tenant: str, window_name: str) -> ScalarSelect[Any]:
    """The uid of the window that currently has this name."""
    condition = and_(windows.c.tenant == tenant, windows.c.name == window_name)
    return select(windows.c.uid).where(condition).scalar_subquery()


class SessionRecords:
    database: Database
    holder: str

    @writing
    def add_session(
        self,
        connection: Connection,
        session: Session,
        token_ids: Sequence[int],
        intent_id: str | None = None,
    ) -> Session:
        if session.thawed_from is None:
            # The caller's scope may have been retired meanwhile. A thawed session stays in the scope of its KV.
            scope = in_force_until_committed(connection, session.tenant, session.salt_scope)
            session = replace(session, salt_scope=scope)
        values = session_values(session) | {"head": head_of(token_ids), "thawed_from_uid": None}
        if session.thawed_from is not None:
            values["thawed_from_uid"] = uid_of(session.tenant, session.thawed_from)
        try:
            connection.execute(insert(sessions).values(values))
        except IntegrityError as error:
            raise SessionAlreadyExistsError(
                f"There is a session '{session.id}' already.", session_id=session.id
            ) from error
        put(connection, session_tokens, _tokens_values(session.tenant, session.id, token_ids))
        if intent_id is not None:
            end_one(connection, session.tenant, intent_id)
        return session

    @writing
    def touch_session(self, connection: Connection, session: Session, at: datetime) -> bool:
        statement = update(sessions).where(_is_still_live(session)).values(updated_at=at)
        return connection.execute(statement).rowcount == 1

    @writing
    def expire_session(self, connection: Connection, session: Session, at: datetime) -> bool:
        idle = and_(
            _is_still_live(session),
            sessions.c.revision == session.revision,
            sessions.c.updated_at == session.updated_at,
        )
        statement = update(sessions).where(idle).values(state=SessionState.EXPIRED.value, updated_at=at)
        return connection.execute(statement).rowcount == 1

    @writing
    def remove_session(
        self,
        connection: Connection,
        tenant: str,
        session_id: str,
        at: datetime,
        cache_salt: str = "",
        debt: Debt | None = None,
        created_at: datetime | None = None,
    ) -> Intent | None:
        """Delete the session. While windows refer to it, keep its row with its id and CWM's own metadata."""
        session = find_session(connection, tenant, session_id)
        if session is None or created_at not in {None, session.created_at}:
            raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)
        if session.state is SessionState.FROZEN:
            raise SessionNotActiveError(
                f"Session '{session_id}' is frozen; delete its windows first.", session_id=session_id
            )
        mine = and_(session_tokens.c.tenant == tenant, session_tokens.c.session_id == session_id)
        connection.execute(delete(session_tokens).where(mine))
        change = update(sessions).where(_is(tenant, session_id))
        connection.execute(
            change.values(
                state=SessionState.DELETED.value, head=None, token_count=0, metadata=session.own_metadata
            )
        )
        references = select(windows.c.name).where(
            windows.c.tenant == tenant, windows.c.session_id == session_id
        )
        if connection.execute(references).first() is None:
            connection.execute(delete(sessions).where(_is(tenant, session_id)))
        if not debt:
            return None
        release = Intent(
            tenant, uuid4().hex, Operation.RELEASE, "", cache_salt, self.holder, at, session_id, debt=debt
        )
        connection.execute(insert(intents).values(intent_values(release)))
        return release

    @glancing
    def session(
        self, connection: Connection, tenant: str, session_id: str, *, any_state: bool = False
    ) -> Session | None:
        return find_session(connection, tenant, session_id, any_state=any_state)

    @reading
    def session_tokens(self, connection: Connection, tenant: str, session_id: str) -> TokenIds:
        query = select(session_tokens).where(
            session_tokens.c.tenant == tenant, session_tokens.c.session_id == session_id
        )
        row = connection.execute(query).one_or_none()
        exists = row is not None or find_session(connection, tenant, session_id)
        if row is not None:
            return restore(row.packed, row.digest, row.token_count, session_id=session_id)
        if exists:
            raise StorageCorruptionError("The token ids of a session are gone.", session_id=session_id)
        raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)

    @writing_at_once
    def record_turn(
        self,
        connection: Connection,
        tenant: str,
        session_id: str,
        token_ids: Sequence[int],
        at: datetime,
        metadata: Mapping[str, Any] | None = None,
        revision: int | None = None,
        created_at: datetime | None = None,
    ) -> Session | None:
        values = {
            "at_revision": revision,
            "made_at": created_at,
            "to_token_count": len(token_ids),
            "to_head": head_of(token_ids),
            "to_updated_at": at,
            "to_metadata": None if metadata is None else dict(metadata),
            **_this(tenant, session_id),
        }
        tokens = _tokens_values(tenant, session_id, token_ids)
        if connection.dialect.name == "postgresql":
            token_values = {f"kept_{name}": value for name, value in tokens.items()}
            row = connection.execute(_turn_with_tokens(), {**values, **token_values}).one_or_none()
        else:
            row = connection.execute(_TURN, values).one_or_none()
            if row is not None:
                put(connection, session_tokens, tokens)
        return None if row is None else session_of(row)

    @reading
    def sessions(self, connection: Connection, tenant: str, query: SessionQuery) -> list[Session]:
        statement, which = _NEWEST, {"of_tenant": tenant, "most": query.limit}
        if query.states is not None:
            statement = statement.where(_IN_STATES)
            which["of_states"] = sorted(query.states)
        if query.after is not None:
            statement = statement.where(_AFTER)
            which |= {"after_time": query.after.created_at, "after_id": query.after.id}
        return [session_of(row, _LISTED) for row in connection.execute(statement, which)]

    @reading
    def live_sessions_with_head(
        self, connection: Connection, tenant: str, salt_scope: str, head: Sequence[int]
    ) -> list[str]:
        being_stored = (
            select(windows.c.name)
            .where(
                windows.c.tenant == sessions.c.tenant,
                windows.c.session_id == sessions.c.id,
                windows.c.durability == Durability.PENDING.value,
            )
            .exists()
        )
        query = (
            select(sessions.c.id)
            .where(
                sessions.c.tenant == tenant,
                sessions.c.salt_scope == salt_scope,
                sessions.c.head == head_of(head),
                or_(sessions.c.state.in_(LIVE_STATES), being_stored),
            )
            .order_by(sessions.c.id)
        )
        if len(head) < HEAD_TOKENS:
            return []
        return list(connection.execute(query).scalars())


def find_session(
    connection: Connection, tenant: str, session_id: str, *, any_state: bool = False
) -> Session | None:
    """The session; None for a deleted one, unless ``any_state``."""
    query = _FOUND if any_state else _FOUND_UNDELETED
    row = connection.execute(query, _this(tenant, session_id)).one_or_none()
    return None if row is None else session_of(row)


def _this(tenant: str, session_id: str) -> dict[str, Any]:
    return {"of_tenant": tenant, "of_id": session_id}


def _is(tenant: str, session_id: str) -> ColumnElement[bool]:
    return and_(sessions.c.tenant == tenant, sessions.c.id == session_id)


def _is_still_live(session: Session) -> ColumnElement[bool]:
    """Matches the session while it is live, and not a later session with its id."""
    return and_(
        _is(session.tenant, session.id),
        sessions.c.created_at == session.created_at,
        sessions.c.state.in_(LIVE_STATES),
    )


@cache
def _turn_with_tokens() -> Executable:
    """Write both rows of a turn in one Postgres statement; parameters of the second row begin with ``kept_``."""
    turn = _TURN.cte("turn")
    content = [c for c in session_tokens.c if not c.primary_key]
    values = [bindparam(f"kept_{column.name}", type_=column.type) for column in content]
    token_row = upsert("postgresql", session_tokens, select(turn.c.tenant, turn.c.id, *values))
    return select(turn).add_cte(token_row.cte("kept"))


def _tokens_values(tenant: str, session_id: str, token_ids: Sequence[int]) -> dict[str, Any]:
    packed, content = compress(token_ids)
    return {
        "tenant": tenant,
        "session_id": session_id,
        "digest": content,
        "token_count": len(token_ids),
        "packed": packed,
    }
