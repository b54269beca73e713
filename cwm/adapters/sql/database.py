"""Opens the registry's database: a SQLite file, or Postgres over asyncpg."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError

from cwm.domain.errors import StorageWriteError
from cwm.settings import places

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

LOCK_TIMEOUT_SECONDS: Final = 10
WRITES_BETWEEN_CHECKPOINTS: Final = 1024
_CONNECT_SECONDS: Final = 5
_STATEMENT_SECONDS: Final = 60
_RETRY_SECONDS: Final = 0.01
_READERS: Final = 4
_POOL: Final = 10
_OVERFLOW: Final = 10
_BEGIN: Final = "cwm_begin"
# Pages of the write-ahead log, 4 KiB each: at 128 MiB a writer merges it itself, if the checkpointer has not.
_PAGES_AT_MOST: Final = 32_768
# KiB of cache of a reader, eight times SQLite's default: a scan of a million windows takes a sixth less time.
_CACHE: Final = 16_384
# The two connections that stay open find and change single rows: SQLite's default is enough, and 14 MiB less each.
_SMALL_CACHE: Final = 2_000
_PRAGMAS: Final = (
    "synchronous=NORMAL",
    "foreign_keys=ON",
    f"wal_autocheckpoint={_PAGES_AT_MOST}",
    f"cache_size=-{_CACHE}",
)

T = TypeVar("T")


@dataclass(slots=True)
class TransactionLoad:
    """The number of transactions, running or waiting; those above the number of ``connections`` wait."""

    connections: int
    transactions: int = 0

    def __enter__(self) -> None:
        self.transactions += 1

    def __exit__(self, *_: object) -> None:
        self.transactions -= 1


class Database(Protocol):
    """A database that runs one transaction per call.

    ``work`` gets the connection and may run in another thread, so it must not use other mutable state. An
    exception in ``work`` ends the transaction and is raised unchanged.
    """

    @property
    def load(self) -> TransactionLoad:
        """The current number of transactions."""
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on a consistent view."""
        ...

    async def glance(self, work: Callable[[Connection], T]) -> T:
        """:meth:`read` for one statement that finds a row by its key; ``work`` may run twice."""
        ...

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` and commit, or undo all of it."""
        ...

    async def write_at_once(self, work: Callable[[Connection], T]) -> T:
        """:meth:`write` for work that is a single statement on Postgres, which saves the round trips of BEGIN and COMMIT."""
        ...

    async def dispose(self) -> None:
        """Wait for running transactions, then close every connection."""
        ...


def open_database(url: str) -> Database:
    """A database that connects on first use; the caller disposes it.

    ``url`` is a SQLAlchemy URL of a SQLite file, or of Postgres with the driver asyncpg. A missing SQLite file and
    its folder are created, readable by their owner only; raises CWM-4001 if that fails.
    """
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        if not target.database or target.database == ":memory:":
            raise StorageWriteError("A registry in memory would lose every window: name a file.")
        return SqliteDatabase(target)
    return PostgresDatabase(target)


class PostgresDatabase:
    """Transactions on a pool of asyncpg connections."""

    def __init__(self, target: URL) -> None:
        # Not for a gateway on SQLite: it loads SQLAlchemy's ORM, 6 MB.
        from sqlalchemy.ext.asyncio import create_async_engine

        # Autocommit for single statements and the pool's pings: BEGIN and COMMIT cost a round trip each.
        self._at_once: AsyncEngine = create_async_engine(
            target,
            isolation_level="AUTOCOMMIT",
            pool_size=_POOL,
            max_overflow=_OVERFLOW,
            pool_timeout=LOCK_TIMEOUT_SECONDS,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "timeout": _CONNECT_SECONDS,
                "command_timeout": _STATEMENT_SECONDS,
                "server_settings": {"application_name": "cwm"},
            },
        )
        self._engine = self._at_once.execution_options(isolation_level="READ COMMITTED")
        self.load = TransactionLoad(_POOL + _OVERFLOW)

    async def read(self, work: Callable[[Connection], T]) -> T:
        with self.load:
            async with self._engine.connect() as connection:
                return await connection.run_sync(work)

    async def glance(self, work: Callable[[Connection], T]) -> T:
        with self.load:
            async with self._at_once.connect() as connection:
                return await connection.run_sync(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        with self.load:
            async with self._engine.begin() as connection:
                return await connection.run_sync(work)

    write_at_once = glance

    async def dispose(self) -> None:
        await self._engine.dispose()


class SqliteDatabase:
    """Transactions in threads, one hand-over per transaction: a hand-over per statement costs more than SQLite itself.

    SQLite allows one writer at a time, and others poll for the lock; the writers of one process queue for one thread.
    A glance takes less time than waking a thread and, with a write-ahead log, waits for no writer: it runs in the
    calling thread, and moves to a reader thread in the rare case that it would have to wait.
    Merging the log into the file waits for the disk, so it has its own thread and delays no write.
    """

    def __init__(self, target: URL) -> None:
        _make_file(Path(str(target.database)))
        self._engine: Engine = create_engine(
            target.set(drivername="sqlite"),
            hide_parameters=True,
            # Without the driver's own BEGIN: `_begin` sends the right kind.
            connect_args={"timeout": LOCK_TIMEOUT_SECONDS, "isolation_level": None},
        )
        event.listen(self._engine, "connect", _set_up)
        event.listen(self._engine, "begin", _begin)
        self._writer = ThreadPoolExecutor(1, "cwm-sqlite-writer")
        self._readers = ThreadPoolExecutor(_READERS, "cwm-sqlite-reader")
        self._checkpointer = ThreadPoolExecutor(1, "cwm-sqlite-checkpointer")
        self._open_connections = ExitStack()
        self._checkpoint: Future[None] | None = None
        self._writes = 0
        self.load = TransactionLoad(_READERS + 1)

    async def read(self, work: Callable[[Connection], T]) -> T:
        with self.load:
            return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def glance(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._glancing.begin():
                return work(self._glancing)
        except OperationalError:
            return await self.read(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        with self.load:
            return await asyncio.get_running_loop().run_in_executor(self._writer, self._write, work)

    write_at_once = write

    async def dispose(self) -> None:
        await asyncio.to_thread(self._close)

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            return work(connection)

    def _write(self, work: Callable[[Connection], T]) -> T:
        with self._writing.begin():
            result = work(self._writing)
        self._writes += 1
        if self._writes >= WRITES_BETWEEN_CHECKPOINTS and (
            self._checkpoint is None or self._checkpoint.done()
        ):
            self._writes = 0
            self._checkpoint = self._checkpointer.submit(self._merge_log)
        return result

    def _merge_log(self) -> None:
        """Merge the part of the log that no reader needs. A failure is retried after further writes."""
        with suppress(OperationalError), self._engine.connect() as connection:
            connection.execution_options(**{_BEGIN: ""}).exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    # These two connections stay open: a check-out from the pool and back costs as much as a small statement.

    @cached_property
    def _writing(self) -> Connection:
        """Takes the write lock at BEGIN: a transaction that began as a reader could not wait for it, only fail."""
        return self._opened("BEGIN IMMEDIATE")

    @cached_property
    def _glancing(self) -> Connection:
        connection = self._opened("")
        connection.exec_driver_sql("PRAGMA busy_timeout=0")
        connection.rollback()
        return connection

    def _opened(self, begin: str) -> Connection:
        connection = self._open_connections.enter_context(self._engine.connect())
        connection.exec_driver_sql(f"PRAGMA cache_size=-{_SMALL_CACHE}")
        connection.rollback()
        return connection.execution_options(**{_BEGIN: begin})

    def _close(self) -> None:
        for threads in (self._writer, self._readers, self._checkpointer):
            threads.shutdown()
        self._open_connections.close()
        self._engine.dispose()


def _make_file(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise StorageWriteError(
            f"The database {path} cannot be created or opened: {places.refusal(path, error)}. Check CWM_DB_PATH.",
            path=str(path),
        ) from error


def _set_up(connection: sqlite3.Connection, _record: Any) -> None:
    _use_write_ahead_log(connection)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Retry until it succeeds: if two connections switch a new file at once, SQLite refuses both despite the timeout."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(_RETRY_SECONDS)


def _begin(connection: Connection) -> None:
    if statement := connection.get_execution_options().get(_BEGIN, "BEGIN DEFERRED"):
        connection.exec_driver_sql(statement)
