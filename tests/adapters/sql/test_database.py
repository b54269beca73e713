from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cwm.adapters.sql import database
from cwm.adapters.sql.audit import SqlAuditLog
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry import SqlRegistry
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    StorageCorruptionError,
    StorageReadError,
    StorageWriteError,
)
from tests.contracts.nouns import IDS, a_session, freeze
from tests.contracts.test_audit_log import an_event

_NOBODY_LISTENS = "postgresql+asyncpg://cwm:hunter2@127.0.0.1:1/cwm"


def _file(url: str) -> Path:
    return Path(url.partition("///")[2])


async def test_a_sqlite_file_and_its_folder_are_for_their_owner_only(empty_sqlite_url: str) -> None:
    engine = open_database(empty_sqlite_url)
    await SqlRegistry(engine).ping()
    await engine.dispose()
    path = _file(empty_sqlite_url)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_sqlite_keeps_a_log_ahead_and_its_foreign_keys(sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    async with engine.connect() as connection:
        asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        found = [(await connection.execute(text(f"PRAGMA {pragma}"))).scalar() for pragma in asked]
    await engine.dispose()
    assert found == ["wal", 1, 1, 10_000]


def test_a_folder_that_cannot_be_made_is_told_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageWriteError, match=r"file/folder/cwm\.db cannot be made or opened: Not a dir"):
        open_database(f"sqlite+aiosqlite:///{tmp_path / 'file' / 'folder' / 'cwm.db'}")


async def test_a_database_nobody_listens_for_is_told_without_its_password() -> None:
    engine = open_database(_NOBODY_LISTENS)
    registry = SqlRegistry(engine)
    for call, code in (
        (registry.ping(), "CWM-4002"),
        (registry.session("acme", "s1"), "CWM-4002"),
        (registry.remove_window("acme", "w1"), "CWM-4001"),
        (SqlAuditLog(engine).record(an_event("e")), "CWM-4001"),
    ):
        with pytest.raises(CwmError) as failed:
            await call
        told = failed.value.as_dict()
        assert (told["code"], told["message"]) == (code, "The database cannot be reached.")
        assert failed.value.retryable
        assert failed.value.__cause__ is not None
        assert "hunter2" not in str(told)
    await engine.dispose()


async def test_a_postgres_without_that_database_says_which_setting_to_check(postgres_server: str) -> None:
    engine = open_database(f"{postgres_server}/nowhere")
    with pytest.raises(StorageReadError, match="check CWM_DATABASE_URL"):
        await SqlRegistry(engine).ping()
    await engine.dispose()


async def test_a_postgres_connection_that_was_cut_is_replaced(
    postgres_url: str, postgres_server: str
) -> None:
    engine = open_database(postgres_url)
    registry = SqlRegistry(engine)
    await registry.ping()
    other = open_database(f"{postgres_server}/postgres")
    async with other.connect() as connection:
        cut = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'migrated'")
        assert (await connection.execute(cut)).scalar() == 1
    await other.dispose()
    await registry.ping()
    await engine.dispose()


async def test_a_writer_waits_for_one_of_another_process_to_end(sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    registry = SqlRegistry(engine)
    await registry.ping()
    other = sqlite3.connect(_file(sqlite_url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(registry.add_session(a_session(), IDS))
    assert await registry.session("acme", "s1") is None  # readers do not wait
    assert not writing.done()
    other.execute("COMMIT")
    other.close()
    await writing
    assert await registry.session_tokens("acme", "s1") == IDS
    await engine.dispose()


async def test_a_writer_that_waited_too_long_says_that_the_database_is_locked(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_SECONDS", 0.05)
    engine = open_database(sqlite_url)
    other = sqlite3.connect(_file(sqlite_url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageWriteError, match="locked by others"):
        await SqlRegistry(engine).add_session(a_session(), IDS)
    other.close()
    await SqlRegistry(engine).add_session(a_session(), IDS)
    await engine.dispose()


async def test_a_full_disk_is_told_as_such_and_leaves_nothing(sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    registry = SqlRegistry(engine)
    await registry.ping()
    async with engine.connect() as connection:
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar()
        await connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    incompressible = tuple(number * 2654435761 % 2**32 for number in range(30_000))
    with pytest.raises(StorageWriteError, match="disk of the database is full"):
        await registry.add_session(a_session(), incompressible)
    assert await registry.session("acme", "s1") is None
    await engine.dispose()


async def test_a_file_that_is_no_database_is_damage(tmp_path: Path) -> None:
    (tmp_path / "cwm.db").write_bytes(b"not a database" * 100)
    engine = open_database(f"sqlite+aiosqlite:///{tmp_path / 'cwm.db'}")
    with pytest.raises(StorageCorruptionError, match="damaged or not a database"):
        await SqlRegistry(engine).ping()
    await engine.dispose()


async def test_text_that_no_database_holds_is_the_callers_fault(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidParameterError):
        await SqlRegistry(engine).add_session(a_session(owner="\ud800"), IDS)


async def test_what_is_stored_outlives_the_process_that_stored_it(database_url: str) -> None:
    first = open_database(database_url)
    window = await freeze(SqlRegistry(first), "w1", "aa", description="kept")
    await first.dispose()
    second = open_database(database_url)
    assert await SqlRegistry(second).window("acme", "w1") == window
    await second.dispose()
