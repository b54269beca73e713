"""Marks are asked for every second: no more is read than what changed, however many records there are."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event

from cwm.adapters.sql.database import SqliteDatabase, open_database
from cwm.adapters.sql.marks import SqlMarks
from tests.contracts.nouns import NOW


async def test_marks_are_found_by_indexes(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    assert isinstance(database, SqliteDatabase)
    asked: list[tuple[str, Any]] = []

    def hear(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    def plans(connection: Connection) -> list[str]:
        rows = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", p).all()
            for s, p in asked
            if s.startswith("SELECT")
        ]
        return [str(row[3]) for each in rows for row in each]

    event.listen(Engine, "before_cursor_execute", hear)
    try:
        marks = SqlMarks(database)
        await marks.touched_of_every_tenant(NOW)
        await marks.window_mark("acme")
        event.remove(Engine, "before_cursor_execute", hear)
        found = await database.read(plans)
    finally:
        await database.dispose()
    assert "SEARCH sessions USING INDEX ix_sessions_state_updated_at (state=? AND updated_at>?)" in found
    assert any("ix_windows_pending (tenant=? AND session_id>?)" in each for each in found)
    assert [each for each in found if each.startswith("SCAN") and each != "SCAN CONSTANT ROW"] == []
