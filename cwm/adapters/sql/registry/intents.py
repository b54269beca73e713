"""Intents: which process works on which window or session."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, and_, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.sessions import find_session
from cwm.adapters.sql.registry.window_writes import (
    begin,
    end_one,
    intent_about,
    not_found,
    same_content,
    window_row,
)
from cwm.adapters.sql.rows import INTENT, intent_of
from cwm.adapters.sql.tables.gateways import intents
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.errors import SessionAlreadyExistsError, StorageReadError
from cwm.domain.intent import Intent, Operation
from cwm.domain.window import Window


class IntentRecords:
    database: Database
    holder: str

    @writing
    def begin_thaw(self, connection: Connection, window: Window, session_id: str, at: datetime) -> Intent:
        # Locked, so that a rename sees the intent.
        row = window_row(connection, window.tenant, window.name, lock=True)
        if row is None:
            raise not_found(window.name)
        if not same_content(row, window):
            raise StorageReadError(
                f"Window '{window.name}' changed meanwhile; thaw it again.", window_name=window.name
            )
        if find_session(connection, window.tenant, session_id, any_state=True) is not None:
            raise SessionAlreadyExistsError(
                f"There is a session '{session_id}' already.", session_id=session_id
            )
        thaw = replace(intent_about(window, Operation.THAW, self.holder, at), session_id=session_id)
        return begin(connection, thaw)

    @writing
    def end_intent(self, connection: Connection, tenant: str, intent_id: str) -> None:
        end_one(connection, tenant, intent_id)

    @writing
    def hand_over(self, connection: Connection, tenant: str, intent_id: str) -> None:
        mine = and_(intents.c.tenant == tenant, intents.c.id == intent_id, intents.c.holder == self.holder)
        connection.execute(update(intents).where(mine).values(holder=""))

    @writing
    def take_over(self, connection: Connection, intent: Intent, holder: str) -> bool:
        """Take over a dead holder's intent; of several processes that try, one succeeds."""
        mine = and_(
            intents.c.tenant == intent.tenant,
            intents.c.id == intent.id,
            intents.c.holder == intent.holder,
        )
        return connection.execute(update(intents).where(mine).values(holder=holder)).rowcount == 1

    @reading
    def intents(self, connection: Connection, tenant: str, window_name: str) -> list[Intent]:
        about = select(*INTENT).where(intents.c.tenant == tenant, intents.c.window_name == window_name)
        return [intent_of(row) for row in connection.execute(about.order_by(intents.c.begun_at))]

    @reading
    def intents_of_every_tenant(self, connection: Connection) -> list[Intent]:
        oldest_first = select(*INTENT).order_by(intents.c.begun_at, intents.c.window_name)
        return [intent_of(row) for row in connection.execute(oldest_first)]
