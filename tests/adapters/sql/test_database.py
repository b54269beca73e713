from __future__ import annotations

import asyncio
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection, text

from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import (
    WRITES_BETWEEN_CHECKPOINTS,
    Database,
    SqliteDatabase,
    open_database,
)
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.errors import (
    CwmError,
    InvalidParameterError,
    StorageCorruptionError,
    StorageReadError,
    StorageWriteError,
)
from tests.contracts.nouns import IDS, LATER, a_session, a_window, freeze
from tests.contracts.test_audit_log import an_event

_NOBODY_LISTENS = "postgresql+asyncpg://cwm:hunter2@127.0.0.1:1/cwm"


def _file(url: str) -> Path:
    return Path(url.partition("///")[2])


async def test_a_sqlite_file_and_its_folder_are_for_their_owner_only(empty_sqlite_url: str) -> None:
    database = open_database(empty_sqlite_url)
    await SqlRegistry(database).ping()
    await database.dispose()
    path = _file(empty_sqlite_url)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_sqlite_keeps_a_log_ahead_and_its_foreign_keys(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    found = await database.read(
        lambda connection: [connection.execute(text(f"PRAGMA {pragma}")).scalar() for pragma in asked]
    )
    await database.dispose()
    assert found == ["wal", 1, 1, 10_000]


def test_a_folder_that_cannot_be_made_is_told_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for below in ("cwm.db", "folder/cwm.db"):
        with pytest.raises(
            StorageWriteError,
            match=f"{below} cannot be created or opened: {file} is not a folder.*CWM_DB_PATH",
        ):
            open_database(f"sqlite:///{file}/{below}")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_registry_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StorageWriteError, match="name a file"):
        open_database(url)


async def test_a_write_whose_caller_left_is_whole_all_the_same(database_url: str) -> None:
    database = open_database(database_url)
    registry = SqlRegistry(database)
    adding = asyncio.create_task(registry.add_session(a_session(), IDS))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    await database.dispose()
    reopened = open_database(database_url)
    if await SqlRegistry(reopened).session("acme", "s1") is not None:
        assert await SqlRegistry(reopened).session_tokens("acme", "s1") == IDS
    await reopened.dispose()


async def test_a_database_nobody_listens_for_is_told_without_its_password() -> None:
    database = open_database(_NOBODY_LISTENS)
    registry = SqlRegistry(database)
    for call, code in (
        (registry.ping(), "CWM-4002"),
        (registry.session("acme", "s1"), "CWM-4002"),
        (registry.remove_window(a_window(), LATER), "CWM-4001"),
        (SqlAuditLog(database, ChainKeys([b"a secret"])).record(an_event("e")), "CWM-4001"),
    ):
        with pytest.raises(CwmError) as failed:
            await call
        told = failed.value.as_dict()
        assert (told["code"], told["message"]) == (code, "The database cannot be reached.")
        assert failed.value.retryable
        assert failed.value.__cause__ is not None
        assert "hunter2" not in str(told)
    await database.dispose()


async def test_a_postgres_without_that_database_says_which_setting_to_check(postgres_server: str) -> None:
    database = open_database(f"{postgres_server}/nowhere")
    with pytest.raises(StorageReadError, match="check CWM_DATABASE_URL"):
        await SqlRegistry(database).ping()
    await database.dispose()


async def test_a_postgres_connection_that_was_cut_is_replaced(
    postgres_url: str, postgres_server: str
) -> None:
    database = open_database(postgres_url)
    registry = SqlRegistry(database)
    await registry.ping()
    other = open_database(f"{postgres_server}/postgres")
    cut = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'migrated'")
    assert await other.read(lambda connection: connection.execute(cut).scalar()) == 1
    await other.dispose()
    await registry.ping()
    await database.dispose()


async def test_it_is_told_when_every_connection_to_postgres_is_in_use(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.adapters.sql.database.LOCK_TIMEOUT_SECONDS", 0.1)
    database = open_database(postgres_url)
    keeper = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    await keeper.execute("SELECT pg_advisory_lock(1)")
    wait = text("SELECT pg_advisory_xact_lock_shared(1)")
    waiting = [
        asyncio.create_task(database.read(lambda connection: connection.execute(wait)))
        for _ in range(database.load.connections)
    ]
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with asyncio.timeout(30):
        while await keeper.fetchval(held) < len(waiting):
            pass
    with pytest.raises(StorageReadError, match="Every connection to the database is in use"):
        await SqlRegistry(database).ping()
    await keeper.close()
    await asyncio.gather(*waiting)
    await SqlRegistry(database).ping()
    await database.dispose()


async def test_a_writer_waits_for_one_of_another_process_to_end(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
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
    await database.dispose()


async def test_a_glance_that_would_have_to_wait_is_left_to_a_reader(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    await SqlRegistry(database).ping()
    ran_in: list[int] = []

    def work(connection: Connection) -> int | None:
        ran_in.append(threading.get_ident())
        statement = "SELECT 1 FROM what_is_not_there" if len(ran_in) == 1 else "SELECT 1"
        return connection.execute(text(statement)).scalar()

    assert await database.glance(work) == 1
    here, there = ran_in
    assert here == threading.get_ident() != there
    await database.dispose()


async def test_a_glance_leaves_nothing_open_behind_it(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
    await registry.add_session(a_session(), IDS)
    assert await registry.session("acme", "s1") is not None
    other = sqlite3.connect(_file(sqlite_url))
    # Busy (1) when somebody still reads; else the whole log is written back and is empty.
    assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    other.close()
    await database.dispose()


async def test_a_writer_that_waited_too_long_says_that_the_database_is_locked(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.adapters.sql.database.LOCK_TIMEOUT_SECONDS", 0.05)
    database = open_database(sqlite_url)
    other = sqlite3.connect(_file(sqlite_url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageWriteError, match="locked by others"):
        await SqlRegistry(database).add_session(a_session(), IDS)
    other.close()
    await SqlRegistry(database).add_session(a_session(), IDS)
    await database.dispose()


async def test_the_log_of_a_sqlite_file_is_merged_into_it_beside_the_writes(
    empty_sqlite_url: str, tmp_path: Path
) -> None:
    database = open_database(empty_sqlite_url)
    assert isinstance(database, SqliteDatabase)
    rows = WRITES_BETWEEN_CHECKPOINTS + 10
    await database.write(lambda connection: connection.execute(text("CREATE TABLE numbers (n INTEGER)")))
    for _ in range(rows):
        await database.write(lambda connection: connection.execute(text("INSERT INTO numbers VALUES (1)")))
        if database._checkpoint is not None:
            await asyncio.wrap_future(database._checkpoint)
    # Of the log's own file nothing is copied.
    shutil.copy(_file(empty_sqlite_url), tmp_path / "alone.db")
    await database.dispose()
    with closing(sqlite3.connect(tmp_path / "alone.db")) as alone:
        merged = alone.execute("SELECT COUNT(*) FROM numbers").fetchone()
    assert merged == (WRITES_BETWEEN_CHECKPOINTS - 1,)  # one write made the table


async def test_a_full_disk_is_told_as_such_and_leaves_nothing(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
    await registry.ping()

    def fill(connection: Connection) -> None:
        pages = connection.execute(text("PRAGMA page_count")).scalar()
        connection.execute(text(f"PRAGMA max_page_count = {pages}"))

    await database.write(fill)
    incompressible = tuple(number * 2654435761 % 2**32 for number in range(30_000))
    with pytest.raises(StorageWriteError, match="disk of the database is full"):
        await registry.add_session(a_session(), incompressible)
    assert await registry.session("acme", "s1") is None
    await database.dispose()


async def test_a_file_that_is_no_database_is_damage(tmp_path: Path) -> None:
    (tmp_path / "cwm.db").write_bytes(b"not a database" * 100)
    database = open_database(f"sqlite:///{tmp_path / 'cwm.db'}")
    with pytest.raises(StorageCorruptionError, match="damaged or not a database"):
        await SqlRegistry(database).ping()
    await database.dispose()


async def test_text_that_no_database_holds_is_the_callers_fault(database: Database) -> None:
    with pytest.raises(InvalidParameterError):
        await SqlRegistry(database).add_session(a_session(owner="\ud800"), IDS)


async def test_what_is_stored_outlives_the_process_that_stored_it(database_url: str) -> None:
    first = open_database(database_url)
    window = await freeze(SqlRegistry(first), "w1", "aa", description="kept")
    await first.dispose()
    second = open_database(database_url)
    assert await SqlRegistry(second).window("acme", "w1") == window
    await second.dispose()
