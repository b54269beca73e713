"""The registry on SQLite or Postgres."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.branches import BranchRecords
from cwm.adapters.sql.registry.engines import EngineRecords
from cwm.adapters.sql.registry.freezes import FreezeRecords
from cwm.adapters.sql.registry.intents import IntentRecords
from cwm.adapters.sql.registry.merges import MergeRecords
from cwm.adapters.sql.registry.renewals import RenewalRecords
from cwm.adapters.sql.registry.scopes import ScopeRecords
from cwm.adapters.sql.registry.sessions import IS_LISTED, SessionRecords
from cwm.adapters.sql.registry.tags import TagRecords
from cwm.adapters.sql.registry.turns import TurnRecords
from cwm.adapters.sql.registry.upkeep import UpkeepRecords, counts_by_name
from cwm.adapters.sql.registry.windows import WindowRecords
from cwm.adapters.sql.tables.sessions import sessions
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from cwm.adapters.sql.transactions import reading
from cwm.adapters.sql.turns.answers import AnswerRecords
from cwm.adapters.sql.turns.messages import MessageRecords
from cwm.adapters.sql.vault import CLEAR, Vault
from cwm.domain.session import SessionState
from cwm.ports.registry import Totals


class SqlRegistry(
    BranchRecords,
    MergeRecords,
    TagRecords,
    SessionRecords,
    EngineRecords,
    TurnRecords,
    AnswerRecords,
    MessageRecords,
    FreezeRecords,
    WindowRecords,
    RenewalRecords,
    ScopeRecords,
    IntentRecords,
    UpkeepRecords,
):
    """The port ``Registry``. Each call is one transaction; the turns and intents that it begins belong to ``holder``.

    ``vault`` seals the token ids and messages that it stores, and their digests.
    """

    def __init__(self, database: Database, holder: str = "", vault: Vault = CLEAR) -> None:
        self.database = database
        self.holder = holder
        self.vault = vault

    @reading
    def totals(self, connection: Connection, tenant: str) -> Totals:
        """The tenant's totals; sessions by state include states with 0 sessions."""
        query = select(func.count()).select_from(windows).where(windows.c.tenant == tenant)
        count = connection.execute(query).scalar_one()
        chunks, chunk_bytes = _distinct_chunks(connection, tenant)
        states = select(sessions.c.state, func.count()).where(sessions.c.tenant == tenant, IS_LISTED)
        by_state = counts_by_name(connection, states.group_by(sessions.c.state), SessionState)
        return Totals(count, by_state, chunks, chunk_bytes)

    @reading
    def ping(self, connection: Connection) -> None:
        connection.execute(select(1))


def _distinct_chunks(connection: Connection, tenant: str) -> tuple[int, int]:
    """Number and bytes of distinct chunks. Salt and hash identify one: the salt depends on the engine's root and weights."""
    distinct = (
        select(func.max(chunk_refs.c.size_bytes).label("size_bytes"))
        .where(chunk_refs.c.tenant == tenant)
        .group_by(chunk_refs.c.cache_salt, chunk_refs.c.hash)
        .subquery()
    )
    whole = select(func.count(), func.coalesce(func.sum(distinct.c.size_bytes), 0)).select_from(distinct)
    chunks, chunk_bytes = connection.execute(whole).one()
    return chunks, int(chunk_bytes)
