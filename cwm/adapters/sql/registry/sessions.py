"""Sessions, and the turns that they begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    and_,
    bindparam,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.scopes import in_force_until_committed
from cwm.adapters.sql.registry.window_writes import end_one
from cwm.adapters.sql.rows import SESSION, intent_values, session_of, session_values, turn_values
from cwm.adapters.sql.tables.columns import UtcDateTime
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.turns import turn_tags, turns
from cwm.adapters.sql.tables.windows import windows
from cwm.adapters.sql.transactions import glancing, reading, writing
from cwm.adapters.sql.turns.packed import compress
from cwm.adapters.sql.turns.sealed import sealed_turn
from cwm.adapters.sql.turns.stored_bytes import count_again
from cwm.adapters.sql.turns.transcripts import (
    copy_messages,
    forget_automatic_tags,
    forget_deleted,
    said_in,
)
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import (
    SessionAlreadyExistsError,
    SessionNotActiveError,
    SessionNotFoundError,
)
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.prefix import digest
from cwm.domain.session import LIVE, Session, SessionQuery, SessionState
from cwm.domain.turn import Turn, TurnState
from cwm.domain.window import Durability

HEAD_TOKENS: Final = 16
IS_LISTED: Final = or_(sessions.c.listed, sessions.c.current_turn.is_not(None))
"""Not of a session that a request opened and in which no turn ended. A gateway of 0022 ends turns without a word of it."""
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
_IN_CIRCLE: Final = _NEWEST.where(sessions.c.circle == bindparam("of_circle"))
_IN_STATES: Final = sessions.c.state.in_(bindparam("of_states", expanding=True))
_AFTER: Final = and_(
    sessions.c.created_at <= bindparam("after_time", type_=UtcDateTime),
    or_(
        sessions.c.created_at < bindparam("after_time", type_=UtcDateTime),
        sessions.c.id < bindparam("after_id"),
    ),
)


def head_of(token_ids: Sequence[int]) -> str | None:
    """A short digest of the first 16 ids, an engine's smallest chunk; shorter sessions share no KV and have none."""
    return digest(token_ids[:HEAD_TOKENS])[:32] if len(token_ids) >= HEAD_TOKENS else None


def _called(text: str) -> ColumnElement[bool]:
    """Its id, its client or a tag has the text in it, in capitals or not."""
    tagged = select(turn_tags.c.session_id).where(
        turn_tags.c.tenant == sessions.c.tenant, turn_tags.c.name.icontains(text, autoescape=True)
    )
    client = select(turns.c.client).where(
        turns.c.tenant == sessions.c.tenant, turns.c.id == sessions.c.current_turn
    )
    return or_(
        sessions.c.id.icontains(text, autoescape=True),
        sessions.c.id.in_(tagged),
        client.scalar_subquery().icontains(text, autoescape=True),
    )


def first_turn(session: Session, token_ids: Sequence[int]) -> dict[str, Any]:
    """The row of the turn that a session with tokens begins with."""
    packed, content = compress(token_ids)
    turn = Turn(
        tenant=session.tenant,
        session_id=session.id,
        id=uuid4().hex,
        author=session.owner,
        asked_at=session.updated_at,
        ended_at=session.updated_at,
        number=1,
        state=TurnState.ENDED,
        prompt_tokens=len(token_ids),
        total_tokens=len(token_ids),
        prompt_digest=content,
        digest=content,
        main=True,
    )
    beside: dict[str, Any] = {"messages": [], "title": None, "sealed_keys": None}
    return turn_values(turn) | {"head": head_of(token_ids), "packed": packed, **beside}


def standing(turn: Mapping[str, Any] | None) -> dict[str, Any]:
    """The columns of a new session that say where its first turn leaves it."""
    if turn is None:
        return {"head": None}
    number: int = turn["number"]
    return {
        "head": turn["head"],
        "current_turn": turn["id"],
        "current_number": number,
        "next_number": number + 1,
    }


def uid_of(tenant: str, window_name: str) -> ScalarSelect[Any]:
    """The uid of the window that currently has this name."""
    condition = and_(windows.c.tenant == tenant, windows.c.name == window_name)
    return select(windows.c.uid).where(condition).scalar_subquery()


class SessionRecords:
    database: Database
    holder: str
    vault: Vault

    @writing
    def add_session(
        self,
        connection: Connection,
        session: Session,
        token_ids: Sequence[int],
        intent_id: str | None = None,
        source_turn: str | None = None,
        *,
        listed: bool = True,
    ) -> Session:
        if session.thawed_from is None:
            # The caller's scope may have been retired meanwhile. A thawed session stays in the scope of its KV.
            scope = in_force_until_committed(connection, session.tenant, session.salt_scope)
            session = replace(session, salt_scope=scope)
        turn = first_turn(session, token_ids) if token_ids else None
        said: Sequence[str] = ()
        if turn is not None:
            if source_turn is not None:
                turn |= said_in(connection, self.vault, session.tenant, source_turn)
            said, turn = turn["messages"], sealed_turn(self.vault, turn)
        values = session_values(session) | standing(turn) | {"thawed_from_uid": None, "listed": listed}
        if session.thawed_from is not None:
            values["thawed_from_uid"] = uid_of(session.tenant, session.thawed_from)
        try:
            connection.execute(insert(sessions).values(values))
        except IntegrityError as error:
            raise SessionAlreadyExistsError(
                f"There is a session '{session.id}' already.", session_id=session.id
            ) from error
        if turn is not None:
            connection.execute(insert(turns), turn)
            copy_messages(connection, self.vault, session, source_turn, said)
            count_again(connection, session.tenant, session.id)
        if intent_id is not None:
            end_one(connection, session.tenant, intent_id)
        return session

    @writing
    def expire_session(self, connection: Connection, session: Session, at: datetime) -> bool:
        idle = and_(
            _is(session.tenant, session.id),
            sessions.c.created_at == session.created_at,
            sessions.c.state.in_(LIVE_STATES),
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
        """Delete the session. While windows or tags refer to it, keep its row with its id and CWM's own metadata."""
        session = find_session(connection, tenant, session_id)
        if session is None or created_at not in {None, session.created_at}:
            raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)
        if session.state is SessionState.FROZEN:
            raise SessionNotActiveError(
                f"Session '{session_id}' is frozen; delete its windows first.", session_id=session_id
            )
        forget_automatic_tags(connection, tenant, session_id)
        change = update(sessions).where(_is(tenant, session_id))
        connection.execute(
            change.values(
                state=SessionState.DELETED.value,
                head=None,
                token_count=0,
                current_turn=None,
                metadata=session.own_metadata,
            )
        )
        forget_deleted(connection, self.vault, tenant, session_id)
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
    def sessions(self, connection: Connection, tenant: str, query: SessionQuery) -> list[Session]:
        statement = _NEWEST if query.circles is None else _IN_CIRCLE
        which = {"of_tenant": tenant, "most": query.limit}
        if not query.unlisted:
            statement = statement.where(IS_LISTED)
        if query.states is not None:
            statement = statement.where(_IN_STATES)
            which["of_states"] = sorted(query.states)
        if query.owner is not None:
            statement = statement.where(sessions.c.owner == query.owner)
        if query.used_since is not None:
            statement = statement.where(sessions.c.updated_at >= query.used_since)
        if query.called is not None:
            statement = statement.where(_called(query.called))
        if query.after is not None:
            statement = statement.where(_AFTER)
            which |= {"after_time": query.after.created_at, "after_id": query.after.id}
        # One by one: for several at once the index does not have the order.
        circles = sorted(query.circles) if query.circles is not None else [""]
        rows = [row for name in circles for row in connection.execute(statement, which | {"of_circle": name})]
        newest = sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)
        return [session_of(row, _LISTED) for row in newest[: query.limit]]

    @writing
    def share_session(self, connection: Connection, session: Session, circle: str) -> bool:
        undeleted = sessions.c.state != SessionState.DELETED.value
        this = and_(_is(session.tenant, session.id), sessions.c.created_at == session.created_at, undeleted)
        return connection.execute(update(sessions).where(this).values(circle=circle)).rowcount == 1

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
                sessions.c.head.in_(self.vault.names(tenant, head_of(head) or "")),
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
