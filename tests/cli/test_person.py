"""``cwm person`` in a shell: one person's data goes into lines of JSON, and then away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from tests.cli.command import cwm
from tests.contracts.nouns import IDS, a_session

pytestmark = pytest.mark.slow


async def test_a_persons_data_is_exported_and_deleted(sqlite_url: str, tmp_path: Path) -> None:
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
    for owner in ("ann", "bob"):
        await registry.add_session(a_session(f"of-{owner}", "default", owner=owner), IDS)
    exported = cwm(tmp_path, "person", "export", "ann")
    assert exported.stderr == ""
    records = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [record["kind"] for record in records] == ["session", "turn"]
    assert (records[0]["id"], records[1]["token_ids"]) == ("of-ann", list(IDS))
    deleted = cwm(tmp_path, "person", "delete", "ann")
    assert deleted.stdout.startswith("Deleted 1 session, 0 windows,"), deleted.stderr
    assert cwm(tmp_path, "person", "delete", "ann", "--json").stdout == '{\n  "turns_elsewhere": 0\n}\n'
    assert await registry.session("default", "of-ann", any_state=True) is None
    assert await registry.session("default", "of-bob") is not None
    await database.dispose()
