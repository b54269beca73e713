"""Cleaning a scope up with its writes takes no longer for its having many keys."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from cwm.adapters.sql.context import index as context_index
from cwm.adapters.sql.context.index import SqlContextIndex
from cwm.adapters.sql.database import SqliteDatabase, open_database
from cwm.domain.shared_context import ContextScope, Write
from cwm.ports.context_index import Bytes

SCOPE = ContextScope("acme", "tenant", "tenant")


async def test_what_a_clean_up_looks_for_is_found_by_an_index_of_its_own(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_index, "_VACUUM_EVERY", 1)
    database = open_database(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    looked: list[tuple[str, Any]] = []

    def hear(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.startswith("SELECT") and "LIMIT" in statement:
            looked.append((statement, parameters))

    def plans(connection: Connection) -> list[str]:
        explained = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", p).all() for s, p in looked]
        return [str(rows[0][3]) for rows in explained]

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        index = SqlContextIndex(database)
        await index.write(SCOPE, [Write("key", "d", 1)], "ann", new=Bytes("d", b"d"), keep=10)
        event.remove(Engine, "before_cursor_execute", hear)
        found = await database.read(plans)
    finally:
        await database.dispose()
    for name in ("past", "ending", "deleted"):
        assert sum(f"ix_context_entries_{name} (tenant=? AND scope=? AND" in plan for plan in found) == 1, (
            found
        )
    assert len(found) == 3
