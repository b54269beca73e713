"""Engine speeds in the registry's database: one row per engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.gateways import engine_speeds
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.speeds import Observation, Speeds


class SqlSpeeds:
    """The port ``SpeedRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def speeds(self, connection: Connection, engine: str) -> Speeds:
        query = select(engine_speeds.c.content).where(engine_speeds.c.engine == engine)
        content = connection.execute(query).scalar_one_or_none()
        return Speeds() if content is None else Speeds.from_dict(content)

    @writing
    def add_speeds(
        self, connection: Connection, engine: str, observations: Sequence[Observation], at: datetime
    ) -> Speeds:
        """Add observations. The first statement locks the row, so two gateways that add at once lose nothing."""
        row = engine_speeds.c.engine == engine
        empty = {"engine": engine, "content": Speeds().as_dict(), "updated_at": at}
        connection.execute(insert_into(connection, engine_speeds).values(empty).on_conflict_do_nothing())
        query = select(engine_speeds.c.content).where(row).with_for_update()
        speeds = Speeds.from_dict(connection.execute(query).scalar_one()).plus(observations)
        connection.execute(update(engine_speeds).where(row).values(content=speeds.as_dict(), updated_at=at))
        return speeds
