"""One transaction a call: begun, committed, and its failures told in CWM's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cwm.adapters.sql.database import WRITES
from cwm.adapters.sql.failures import told_as
from cwm.domain.errors import StorageReadError, StorageWriteError


class Transactions:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        # SQLite lets one writer in at a time and others poll for it; in one process they can queue instead.
        self._turn: Any = asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A consistent view. CWM-4002 when the database does not give it."""
        with told_as(StorageReadError):
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """All of it or, on any exception, nothing of it. CWM-4001 when it cannot be written."""
        with told_as(StorageWriteError):
            async with self._turn, self._engine.connect() as connection:
                await connection.execution_options(**{WRITES: True})
                async with connection.begin():
                    yield connection
