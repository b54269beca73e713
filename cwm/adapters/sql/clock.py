"""The time in statements: Postgres's own clock, which all gateways share; with SQLite, this machine's clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, DateTime, func, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.failures import coded_errors
from cwm.domain.errors import StorageReadError
from cwm.ports.clock import Clock

Now: TypeAlias = datetime | ColumnElement[Any]

CLOCK_OF_POSTGRES: Final = func.clock_timestamp(type_=DateTime(timezone=True))


def now(connection: Connection, clock: Clock | None) -> Now:
    """The time of ``clock`` if there is one, otherwise an expression for Postgres's clock, or this machine's time."""
    if clock is not None:
        return clock.now()
    return CLOCK_OF_POSTGRES if connection.dialect.name == "postgresql" else datetime.now(UTC)


async def time_of(database: Database) -> datetime | None:
    """The time of the database's own clock; None if it has none (SQLite). Raises CWM-4002."""

    def ask(connection: Connection) -> datetime | None:
        if connection.dialect.name != "postgresql":
            return None
        time: datetime = connection.execute(select(CLOCK_OF_POSTGRES)).scalar_one()
        return time.astimezone(UTC)

    with coded_errors(StorageReadError):
        return await database.glance(ask)
