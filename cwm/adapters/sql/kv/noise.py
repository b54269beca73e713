"""Measured noise in the registry's database: one row per engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, select, update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.gateways import engine_noise
from cwm.adapters.sql.transactions import reading, writing
from cwm.domain.look import Distance
from cwm.domain.noise import Noise


class SqlNoise:
    """The port ``NoiseRecords`` on SQLite or Postgres."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def noise(self, connection: Connection, engine: str) -> Noise:
        query = select(engine_noise.c.content).where(engine_noise.c.engine == engine)
        content = connection.execute(query).scalar_one_or_none()
        return Noise() if content is None else Noise.from_dict(content)

    @writing
    def add_noise(
        self,
        connection: Connection,
        engine: str,
        distances: Sequence[Distance],
        at: datetime,
        computed_twice: float | None = None,
    ) -> Noise:
        """The first statement locks the row, so two gateways that add at once lose nothing."""
        row = engine_noise.c.engine == engine
        empty = {"engine": engine, "content": Noise().as_dict(), "updated_at": at}
        connection.execute(insert_into(connection, engine_noise).values(empty).on_conflict_do_nothing())
        query = select(engine_noise.c.content).where(row).with_for_update()
        noise = Noise.from_dict(connection.execute(query).scalar_one()).plus(distances, computed_twice)
        connection.execute(update(engine_noise).where(row).values(content=noise.as_dict(), updated_at=at))
        return noise
