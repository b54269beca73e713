"""``cwm registry encrypt`` in a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from tests.cli.command import cwm, refused
from tests.contracts.nouns import IDS, a_session

pytestmark = pytest.mark.slow

KEY = "a key of a test, thirty-two characters".replace(" ", "-")


async def test_what_is_stored_is_encrypted_once(sqlite_url: str, tmp_path: Path) -> None:
    database = open_database(sqlite_url)
    await SqlRegistry(database).add_session(a_session(), IDS)
    await database.dispose()
    first = cwm(tmp_path, "registry", "encrypt", CWM_REGISTRY_KEY=KEY)
    assert first.stdout == "Encrypted 1 session, 0 snapshots, 0 responses and 0 conversations.\n"
    assert (
        cwm(tmp_path, "registry", "encrypt", CWM_REGISTRY_KEY=KEY).stdout
        == "Encrypted 0 sessions, 0 snapshots, 0 responses and 0 conversations.\n"
    )
    refused(cwm(tmp_path, "registry", "encrypt", CWM_REGISTRY_KEY="another".ljust(32, "-")), "CWM-4005")
    refused(cwm(tmp_path, "registry", "encrypt"), "CWM-1003", 2)
