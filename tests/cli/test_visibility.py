"""Two people with keys of one tenant, on the command line: what is private to one is not there for the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeAlias

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from tests.cli.command import cwm, refused, serving
from tests.contracts.nouns import a_session, freeze

pytestmark = pytest.mark.slow

Run: TypeAlias = Callable[..., CompletedProcess[str]]


@pytest.fixture
async def people(sqlite_url: str, tmp_path: Path) -> AsyncIterator[tuple[Run, Run]]:
    """Ann's and Bob's commands. Both have keys of the workspace ``design``; a session ``s`` and a window ``w`` are Ann's, and private."""
    database = open_database(sqlite_url)
    registry = SqlRegistry(database)
    whose: dict[str, Any] = {"owner": "key:ann", "circle": "owner:key:ann"}
    await freeze(registry, "w", tenant="default", **whose)
    await registry.add_session(a_session("s", "default", **whose), ())
    await database.dispose()
    scopes = [f"--scope={scope}" for scope in ("windows:*", "sessions:write")]
    keys = [
        cwm(tmp_path, "keys", "create", name, *scopes, "--workspace", "design").stdout.strip()
        for name in ("ann", "bob")
    ]
    with serving(tmp_path, CWM_API_KEYS="true") as (url, _):

        def as_somebody(key: str) -> Run:
            return lambda *arguments: cwm(tmp_path, *arguments, "--url", url, CWM_API_KEY=key, COLUMNS="200")

        ann, bob = map(as_somebody, keys)
        yield ann, bob


async def test_what_is_private_is_not_there_for_others_until_it_is_shared(people: tuple[Run, Run]) -> None:
    ann, bob = people
    assert "private" in ann("windows", "list").stdout
    assert bob("windows", "list").stdout == "There are no windows.\n"
    assert bob("sessions", "list").stdout == "There are no sessions.\n"
    assert "no window 'w'" in refused(bob("windows", "show", "w"), "CWM-2002")
    refused(bob("sessions", "delete", "s", "--yes"), "CWM-2001")
    refused(bob("windows", "share", "w", "tenant"), "CWM-2002")
    refused(ann("windows", "share", "w", "workspace:ops"), "CWM-1003")

    assert ann("windows", "share", "w", "workspace:design").stdout == "Window w: workspace:design.\n"
    assert ann("sessions", "share", "s", "tenant").stdout == "Session s: tenant.\n"

    assert "workspace:design" in bob("windows", "show", "w").stdout
    assert "key:ann" in bob("sessions", "list", "--visibility", "tenant").stdout
    assert bob("windows", "list", "--visibility", "tenant").stdout == "No window is like that.\n"
    refused(bob("windows", "share", "w", "tenant"), "CWM-9002")
    assert ann("windows", "share", "w", "private").returncode == 0
    refused(bob("windows", "show", "w"), "CWM-2002")


def test_a_key_lists_the_workspaces_that_it_is_a_member_of(tmp_path: Path) -> None:
    create = ("keys", "create", "ci", "--scope", "windows:read", "--workspace")
    assert cwm(tmp_path, *create, "design", "--workspace", "ops").returncode == 0
    assert "design ops" in cwm(tmp_path, "keys", "list", COLUMNS="200").stdout
    refused(cwm(tmp_path, *create, "no/name"), "CWM-1003")
