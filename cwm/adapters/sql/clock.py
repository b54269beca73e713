"""What time it is: Postgres says so itself, to all gateways alike; a file has no clock but ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, DateTime, func, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.failures import told_as
from cwm.domain.errors import StorageReadError
from cwm.ports.clock import Clock

Now: TypeAlias = datetime | ColumnElement[Any]

CLOCK_OF_POSTGRES: Final = func.clock_timestamp(type_=DateTime(timezone=True))


def now(connection: Connection, clock: Clock | None) -> Now:
    """A moment, or what a statement has Postgres put in its place; a ``clock`` that is given counts everywhere."""
    if clock is not None:
        return clock.now()
    return CLOCK_OF_POSTGRES if connection.dialect.name == "postgresql" else datetime.now(UTC)


async def time_of(database: Database) -> datetime | None:
    """By the database's own clock; None where it has none. CWM-4002."""

    def ask(connection: Connection) -> datetime | None:
        if connection.dialect.name != "postgresql":
            return None
        told: datetime = connection.execute(select(CLOCK_OF_POSTGRES)).scalar_one()
        return told.astimezone(UTC)

    with told_as(StorageReadError):
        return await database.glance(ask)
