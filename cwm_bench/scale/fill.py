"""Fill a registry in bulk: the rows that its adapters would write, many at once, with indexes made afterwards."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import asyncpg
from sqlalchemy import Dialect, Index, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import asyncpg as postgresql
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateIndex

from cwm.adapters.sql import schema
from cwm.adapters.sql.tables.sessions import sessions, snapshots
from cwm.adapters.sql.tables.turns import turn_contents, turns
from cwm.adapters.sql.tables.window_lists import window_counts, window_grams, window_search, window_terms
from cwm.adapters.sql.tables.windows import chunk_refs, windows
from cwm.adapters.sql.window_list.terms import grams_of, spelled
from cwm_bench.scale.rows import WINDOWS_A_SESSION, batches

_TABLES: Final = (
    sessions,
    turns,
    turn_contents,
    snapshots,
    windows,
    window_search,
    window_terms,
    window_grams,
    chunk_refs,
)
_COUNTS: Final = """
INSERT INTO window_counts (tenant, term, windows)
SELECT tenant, '', count(*) FROM window_search GROUP BY tenant
UNION ALL SELECT tenant, term, count(*) FROM window_terms GROUP BY tenant, term
"""
_PROGRESS_EVERY: Final = 100_000


class _Bulk(Protocol):
    dialect: Dialect

    async def write(self, table: Table, columns: list[str], rows: list[tuple[Any, ...]]) -> None: ...

    async def run(self, statement: str) -> None: ...

    async def settle(self) -> None:
        """Finish the work that a server or a checkpoint would do later."""


async def fill(
    url: str, count: int, progress: Callable[[str], None], a_session: int = WINDOWS_A_SESSION
) -> None:
    """Make the schema in an empty database, and ``count`` windows with their sessions, turns, tokens and chunks."""
    await schema.upgrade(url)
    async with _bulk(url) as bulk:
        for index in _indexes():
            await bulk.run(f"DROP INDEX {index.name}")
        count_written, last_report = 0, 0
        for batch in batches(count, a_session):
            rows = dict(batch.rows)
            rows[window_grams] = _grams(rows, bulk.dialect)
            for table in _TABLES:
                await _write(bulk, table, rows.get(table, []))
            count_written += len(rows[windows])
            if count_written - last_report >= _PROGRESS_EVERY:
                last_report = count_written
                progress(f"{count_written:,} windows written")
        progress("indexes")
        await bulk.run(_COUNTS)
        for index in _indexes():
            await bulk.run(str(CreateIndex(index).compile(dialect=bulk.dialect)))
        await bulk.settle()


def _indexes() -> list[Index]:
    """The indexes that Postgres and SQLite have in common; FTS5 has its own."""
    mine = [index for table in (*_TABLES, window_counts) for index in table.indexes]
    return sorted(mine, key=lambda index: str(index.name))


def _grams(rows: dict[Table, list[dict[str, Any]]], dialect: Dialect) -> list[dict[str, Any]]:
    terms: dict[tuple[str, str], list[str]] = {}
    for row in rows[window_terms]:
        terms.setdefault((row["tenant"], row["name"]), []).append(row["term"])
    gram_rows = []
    for row in rows[window_search]:
        grams = grams_of(row["tenant"], row["words"], terms[row["tenant"], row["name"]])
        gram_rows.append({"id": row["id"], "grams": spelled(grams) if dialect.name == "sqlite" else grams})
    return gram_rows


async def _write(bulk: _Bulk, table: Table, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    columns = list(rows[0])
    as_written = [tuple(row.values()) for row in rows]
    if table is not window_grams:  # its rows are made for the target database
        binds = [
            table.c[name].type.dialect_impl(bulk.dialect).bind_processor(bulk.dialect) for name in columns
        ]
        as_written = [
            tuple(value if bind is None else bind(value) for value, bind in zip(row, binds, strict=True))
            for row in as_written
        ]
    await bulk.write(table, columns, as_written)


@asynccontextmanager
async def _bulk(url: str) -> AsyncIterator[_Bulk]:
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        connection = sqlite3.connect(str(target.database), isolation_level=None)
        try:
            yield _Sqlite(connection)
        finally:
            connection.close()
        return
    postgres = await asyncpg.connect(url.replace("+asyncpg", ""), command_timeout=3600)
    try:
        # References between rows hold by construction: checking each would take most of the time.
        await postgres.execute("SET session_replication_role = replica")
        yield _Postgres(postgres)
    finally:
        await postgres.close()


@dataclass(slots=True)
class _Sqlite:
    connection: sqlite3.Connection
    dialect: Dialect = field(default_factory=sqlite.dialect)

    async def write(self, table: Table, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        into = ["rowid", "grams"] if table is window_grams else columns
        places = ", ".join("?" * len(into))
        self.connection.execute("BEGIN")
        self.connection.executemany(
            f"INSERT INTO {table.name} ({', '.join(into)}) VALUES ({places})",  # noqa: S608 - names of columns
            rows,
        )
        self.connection.execute("COMMIT")

    async def run(self, statement: str) -> None:
        if window_grams.name not in statement:
            self.connection.execute(statement)

    async def settle(self) -> None:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@dataclass(slots=True)
class _Postgres:
    connection: Any
    dialect: Dialect = field(default_factory=postgresql.dialect)

    async def write(self, table: Table, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        await self.connection.copy_records_to_table(table.name, records=rows, columns=columns)

    async def run(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def settle(self) -> None:
        await self.connection.execute(
            "SELECT setval(pg_get_serial_sequence('window_search', 'id'), max(id)) FROM window_search"
        )
        await self.connection.execute("VACUUM ANALYZE")
        await self.connection.execute("CHECKPOINT")
