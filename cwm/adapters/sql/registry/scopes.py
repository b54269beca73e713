"""Retired salt scopes and their successors."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select, text, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.snapshots import put
from cwm.adapters.sql.tables.sessions import salt_epochs, sessions
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.session import FREEZABLE

_MARK: Final = "#"
_USABLE: Final = tuple(sorted(state.value for state in FREEZABLE))


class ScopeRecords:
    """A scope is ``base``; its successors are ``base#1``, ``base#2`` and so on."""

    database: Database

    @reading
    def current_scope(self, connection: Connection, tenant: str, base: str) -> str:
        return _name(base, _epoch(connection, tenant, base))

    @writing
    def retire_scope(self, connection: Connection, tenant: str, salt_scope: str) -> str:
        """The successor of ``salt_scope``. If it is already retired, for example by another replica, nothing changes."""
        _lock(connection, tenant, "pg_advisory_xact_lock")
        base = salt_scope.partition(_MARK)[0]
        epoch = _epoch(connection, tenant, base)
        if salt_scope == _name(base, epoch):
            epoch += 1
            put(connection, salt_epochs, {"tenant": tenant, "base": base, "epoch": epoch})
        successor = _name(base, epoch)
        statement = (
            update(sessions)
            .where(
                sessions.c.tenant == tenant,
                sessions.c.salt_scope == salt_scope,
                sessions.c.state.in_(_USABLE),
            )
            .values(salt_scope=successor)
        )
        connection.execute(statement)
        return successor


def in_force_until_committed(connection: Connection, tenant: str, salt_scope: str) -> str:
    """The scope, or its successor, protected from retirement until the transaction ends.

    Call it before locking a row.
    """
    _lock(connection, tenant, "pg_advisory_xact_lock_shared")
    base = salt_scope.partition(_MARK)[0]
    return _name(base, _epoch(connection, tenant, base))


def _lock(connection: Connection, tenant: str, function: str) -> None:
    """Serialize: retiring a scope would miss a session that is being added to it. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        alone = text(f"SELECT {function}(hashtextextended(:tenant, 2001))")
        connection.execute(alone, {"tenant": tenant})


def _epoch(connection: Connection, tenant: str, base: str) -> int:
    query = select(salt_epochs.c.epoch).where(salt_epochs.c.tenant == tenant, salt_epochs.c.base == base)
    return connection.execute(query).scalar_one_or_none() or 0


def _name(base: str, epoch: int) -> str:
    return f"{base}{_MARK}{epoch}" if epoch else base
