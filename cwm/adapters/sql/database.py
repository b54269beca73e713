"""Opening the registry's database: a SQLite file, or Postgres over asyncpg."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from cwm.domain.errors import StorageWriteError

WRITES: Final = "cwm_writes"
"""Execution option of a connection that is going to write."""

LOCK_TIMEOUT_SECONDS: Final = 10
_CONNECT_SECONDS: Final = 5
_STATEMENT_SECONDS: Final = 60
_RETRY_SECONDS: Final = 0.01
_PRAGMAS: Final = ("synchronous=NORMAL", "foreign_keys=ON")


def open_database(url: str) -> AsyncEngine:
    """An engine that connects on first use; dispose it when done.

    ``url`` is SQLAlchemy's, with the driver aiosqlite or asyncpg. A SQLite file and its folder are made,
    readable by their owner only; CWM-4001 when that is not possible.
    """
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        return _open_sqlite(target)
    return create_async_engine(
        target,
        pool_size=10,
        max_overflow=10,
        pool_timeout=LOCK_TIMEOUT_SECONDS,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={
            "timeout": _CONNECT_SECONDS,
            "command_timeout": _STATEMENT_SECONDS,
            "server_settings": {"application_name": "cwm"},
        },
    )


def _open_sqlite(target: URL) -> AsyncEngine:
    if target.database and target.database != ":memory:":
        _make_file(Path(target.database))
    engine = create_async_engine(
        target,
        hide_parameters=True,
        # Without the driver's own BEGIN: `_begin` says which kind a transaction is.
        connect_args={"timeout": LOCK_TIMEOUT_SECONDS, "isolation_level": None},
    )
    event.listen(engine.sync_engine, "connect", _set_up)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _make_file(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        raise StorageWriteError(
            f"The database {path} cannot be made or opened: {error.strerror}.", path=str(path)
        ) from error


def _set_up(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    _use_write_ahead_log(cursor)
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _use_write_ahead_log(cursor: Any) -> None:
    """Try until it is so: two that switch a new file at once are both refused, whatever their timeout."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
        else:
            return
        await_only(asyncio.sleep(_RETRY_SECONDS))


def _begin(connection: Connection) -> None:
    """A writer takes the lock at once: one that began as a reader could only fail, not wait."""
    kind = "IMMEDIATE" if connection.get_execution_options().get(WRITES) else "DEFERRED"
    connection.exec_driver_sql(f"BEGIN {kind}")
