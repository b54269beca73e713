"""What a window's chunks are shared with is found by them, however many chunks the tenant has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event

from cwm.adapters.sql.database import SqliteDatabase, open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from tests.contracts.nouns import freeze


async def test_no_search_for_shared_chunks_looks_through_all_of_a_tenant(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    asked: list[tuple[str, Any]] = []

    def hear(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "chunk_refs" in statement and statement.startswith("SELECT"):
            asked.append((statement, parameters))

    def plans(connection: Connection) -> list[str]:
        rows = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", p).all() for s, p in asked]
        return [str(row[3]) for each in rows for row in each if "chunk_refs" in row[3]]

    registry = SqlRegistry(database)
    await freeze(registry, "w1", "aa", "bb")
    event.listen(Engine, "before_cursor_execute", hear)
    try:
        await registry.chunks_of_other_windows("acme", "w1")
        await registry.unreferenced("acme", "salt-of-acme", ["aa", "bb"])
        event.remove(Engine, "before_cursor_execute", hear)
        found = await database.read(plans)
    finally:
        await database.dispose()
    assert len(found) == 3
    for plan in found:
        assert "window_name=?" in plan or "hash=?" in plan, found
