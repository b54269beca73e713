"""A span for each transaction: the method that ran it and the error type, but no statement and no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection

from cwm.adapters.sql.database import Database, PostgresDatabase, TransactionLoad
from cwm.ports.tracing import Tracer

T = TypeVar("T")


def traced(database: Database, tracer: Tracer) -> Database:
    """The database with a span for each transaction, if ``tracer`` is on."""
    return TracedDatabase(database, tracer) if tracer.on else database


class TracedDatabase:
    """Raises failures unchanged, because some callers handle them."""

    def __init__(self, database: Database, tracer: Tracer) -> None:
        self._database = database
        self._tracer = tracer
        self._system = "postgresql" if isinstance(database, PostgresDatabase) else "sqlite"

    @property
    def load(self) -> TransactionLoad:
        return self._database.load

    async def read(self, work: Callable[[Connection], T]) -> T:
        with self._transaction("read", work):
            return await self._database.read(work)

    async def glance(self, work: Callable[[Connection], T]) -> T:
        with self._transaction("read", work):
            return await self._database.glance(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        with self._transaction("write", work):
            return await self._database.write(work)

    async def write_at_once(self, work: Callable[[Connection], T]) -> T:
        with self._transaction("write", work):
            return await self._database.write_at_once(work)

    async def dispose(self) -> None:
        await self._database.dispose()

    @contextmanager
    def _transaction(self, operation: str, work: Callable[[Connection], object]) -> Iterator[None]:
        name = work.__qualname__
        attributes = {
            "db.system.name": self._system,
            "db.operation.name": operation,
            "code.function.name": name,
        }
        with self._tracer.call(f"{operation} {name}", attributes):
            yield
