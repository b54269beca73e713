"""Decorators that run a method in one transaction and map failures to CWM's errors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.failures import coded_errors
from cwm.domain.errors import CwmError, StorageReadError, StorageWriteError


class _Records(Protocol):
    @property
    def database(self) -> Database: ...


S = TypeVar("S", bound=_Records)
P = ParamSpec("P")
T = TypeVar("T")


class _Decorator(Protocol):
    """Makes a method that takes a connection one that opens the transaction itself."""

    def __call__(
        self, body: Callable[Concatenate[S, Connection, P], T], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


def _transaction(run: Callable[[Database], Callable[..., Any]], failure: type[CwmError]) -> _Decorator:
    """``run`` chooses the database's method that runs the transaction; its failures become ``failure``."""

    def decorate(
        body: Callable[Concatenate[S, Connection, P], T], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(body)
        async def transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            def work(connection: Connection) -> T:
                return body(self, connection, *args, **kwargs)

            # Traces name the work.
            work.__qualname__ = body.__qualname__
            with coded_errors(failure):
                result: T = await run(self.database)(work)
            return result

        return transaction

    return decorate


reading: Final = _transaction(lambda database: database.read, StorageReadError)
"""Run the method in its own transaction, on a consistent view. Raises CWM-4002 if the database cannot be read."""

glancing: Final = _transaction(lambda database: database.glance, StorageReadError)
""":data:`reading` for a method that finds one row by its key. Raises CWM-4002."""

writing: Final = _transaction(lambda database: database.write, StorageWriteError)
"""Run the method in its own transaction, which any exception rolls back. Raises CWM-4001."""

writing_at_once: Final = _transaction(lambda database: database.write_at_once, StorageWriteError)
""":data:`writing` for a method that is a single statement on Postgres. Raises CWM-4001."""
