"""Sums of turns in the registry's database: one row per tenant and hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.turn_sums import turn_sums
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.turn_sums import TurnSum

_COUNTS: Final = tuple(each.name for each in fields(TurnSum))


class SqlTurnSums:
    """The port ``TurnSumRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def add_turn_sums_of_every_tenant(
        self, connection: Connection, sums: Mapping[tuple[str, datetime], TurnSum], before: datetime
    ) -> None:
        # In one order, so that two gateways that add at once do not wait for each other.
        for (tenant, hour), added in sorted(sums.items(), key=lambda each: each[0]):
            row = insert_into(connection, turn_sums).values(tenant=tenant, hour=hour, **asdict(added))
            grown = {name: turn_sums.c[name] + row.excluded[name] for name in _COUNTS}
            connection.execute(
                row.on_conflict_do_update(index_elements=[turn_sums.c.tenant, turn_sums.c.hour], set_=grown)
            )
        connection.execute(delete(turn_sums).where(turn_sums.c.hour < before))

    @reading
    def turn_sums(self, connection: Connection, tenant: str, since: datetime) -> Mapping[datetime, TurnSum]:
        wanted = select(turn_sums).where(turn_sums.c.tenant == tenant, turn_sums.c.hour >= since)
        return {
            row.hour: TurnSum(*(getattr(row, name) for name in _COUNTS))
            for row in connection.execute(wanted.order_by(turn_sums.c.hour))
        }
