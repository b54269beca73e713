"""A gateway over a SQLite file, an engine and a cache in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cwm.adapters.sql.database import Database, open_database
from tests.services.fleet_of import Fleet
from tests.services.fleet_of import fleet as a_fleet
from tests.services.windows_of import Gateway, gateway


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    opened = open_database(sqlite_url)
    yield opened
    await opened.dispose()


@pytest.fixture
async def cwm(sqlite: Database) -> AsyncIterator[Gateway]:
    running = gateway(sqlite)
    yield running
    await running.settle()


@pytest.fixture
async def fleet(sqlite: Database) -> AsyncIterator[Fleet]:
    opened = a_fleet(sqlite)
    yield opened
    await opened.cwm.settle()
