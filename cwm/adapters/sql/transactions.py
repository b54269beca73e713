"""Decorators that run a method in one transaction and map failures to CWM's errors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.failures import coded_errors
from cwm.domain.errors import StorageReadError, StorageWriteError


class _Records(Protocol):
    @property
    def database(self) -> Database: ...


S = TypeVar("S", bound=_Records)
P = ParamSpec("P")
T = TypeVar("T")


def reading(
    body: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Run the method in its own transaction, on a consistent view. Raises CWM-4002 if the database cannot be read."""

    @wraps(body)
    async def transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with coded_errors(StorageReadError):
            return await self.database.read(_work(body, self, *args, **kwargs))

    return transaction


def glancing(
    body: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """:func:`reading` for a method that finds one row by its key. Raises CWM-4002."""

    @wraps(body)
    async def look(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with coded_errors(StorageReadError):
            return await self.database.glance(_work(body, self, *args, **kwargs))

    return look


def writing(
    body: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Run the method in its own transaction, which any exception rolls back. Raises CWM-4001."""

    @wraps(body)
    async def transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with coded_errors(StorageWriteError):
            return await self.database.write(_work(body, self, *args, **kwargs))

    return transaction


def writing_at_once(
    body: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """:func:`writing` for a method that is a single statement on Postgres. Raises CWM-4001."""

    @wraps(body)
    async def transaction(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with coded_errors(StorageWriteError):
            return await self.database.write_at_once(_work(body, self, *args, **kwargs))

    return transaction


def _work(
    body: Callable[Concatenate[S, Connection, P], T], records: S, /, *args: P.args, **kwargs: P.kwargs
) -> Callable[[Connection], T]:
    """The method as a function of the connection, with the method's name for traces."""

    def work(connection: Connection) -> T:
        return body(records, connection, *args, **kwargs)

    work.__qualname__ = body.__qualname__
    return work
