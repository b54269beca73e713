"""What upstreams offer, on the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cwm.adapters.sql import schema
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.upstream_tools import SqlUpstreamTools
from cwm.domain.upstream_tools import version_of
from cwm.settings import Database
from tests.cli.command import cwm, refused

pytestmark = pytest.mark.slow


def offered(folder: Path, *lists: dict[str, str]) -> None:
    """``docs`` lists these descriptions by tool, one list after the other."""

    async def note() -> None:
        url = Database(db_path=folder / "cwm.db").url()
        await schema.upgrade(url)
        database = open_database(url)
        for day, tools in enumerate(lists, 1):
            versions = [version_of({"name": name, "description": told}) for name, told in tools.items()]
            await SqlUpstreamTools(database).note("docs", versions, datetime(2026, 3, day, 12, tzinfo=UTC))
        await database.dispose()

    asyncio.run(note())


def test_what_an_upstream_changed_is_shown_with_its_time_and_accepted(tmp_path: Path) -> None:
    assert "No gateway" in cwm(tmp_path, "upstreams", "list").stdout
    offered(
        tmp_path, {"say": "Says it.", "find": "Finds."}, {"say": "Reads \x1b[2J a key.", "find": "Finds."}
    )

    (listed,) = json.loads(cwm(tmp_path, "upstreams", "list", "--json").stdout)["upstreams"]
    assert (listed["upstream"], listed["tools"], listed["changed"]) == ("docs", 2, ["say"])
    assert listed["last_change"] == "2026-03-02T12:00:00+00:00"
    shown = json.loads(cwm(tmp_path, "upstreams", "show", "docs", "--json").stdout)["tools"]
    assert [(each["tool"], each["state"], each["since"][:10]) for each in shown] == [
        ("find", "accepted", "2026-03-01"),
        ("say", "changed", "2026-03-02"),
    ]
    text = cwm(tmp_path, "upstreams", "show", "docs").stdout
    assert "changed" in text
    assert "\x1b" not in text

    assert cwm(tmp_path, "upstreams", "accept", "docs").stdout == "Accepted 1 of docs: say.\n"
    assert cwm(tmp_path, "upstreams", "accept", "docs").stdout == "Nothing of docs has changed.\n"
    assert "changed" not in cwm(tmp_path, "upstreams", "show", "docs").stdout
    events = json.loads(cwm(tmp_path, "audit", "list", "--event", "upstream.accept", "--json").stdout)
    assert "say" in json.dumps(events)


def test_an_upstream_or_a_tool_that_nobody_saw_is_one_sentence(tmp_path: Path) -> None:
    offered(tmp_path, {"say": "Says it."})
    refused(cwm(tmp_path, "upstreams", "show", "other"), "CWM-1003")
    refused(cwm(tmp_path, "upstreams", "accept", "other"), "CWM-1003")
    refused(cwm(tmp_path, "upstreams", "accept", "docs", "nothing"), "CWM-1003")
