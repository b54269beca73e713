from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.cli.command import cwm, refused, serving

pytestmark = pytest.mark.slow


def test_migrate_makes_the_tables_and_says_what_it_applied(tmp_path: Path) -> None:
    first = cwm(tmp_path, "migrate")
    second = cwm(tmp_path, "migrate")

    assert first.returncode == second.returncode == 0, first.stderr
    assert "Applied 0001" in first.stdout
    assert second.stdout == "The schema is up to date.\n"
    with sqlite3.connect(tmp_path / "cwm.db") as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert {"sessions", "windows", "snapshots"} <= tables


def test_a_gateway_that_makes_its_registry_has_nothing_in_memory_that_it_needs_no_more(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, PYTHONPROFILEIMPORTTIME="1"):
        assert cwm(tmp_path, "migrate").stdout == "The schema is up to date.\n"
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if "|" in line}
    assert {"sqlalchemy", "fastmcp"} <= imported
    assert not imported & {"alembic", "griffe", "requests"}


def test_serve_and_migrate_refuse_a_schema_they_do_not_know(tmp_path: Path) -> None:
    assert cwm(tmp_path, "migrate").returncode == 0
    with sqlite3.connect(tmp_path / "cwm.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")

    for command in ("serve", "migrate"):
        sentence = refused(cwm(tmp_path, command, CWM_PORT="0"), "CWM-4002")
        assert "9999" in sentence


def test_migrate_of_a_database_that_is_not_there_is_refused(tmp_path: Path) -> None:
    run = cwm(tmp_path, "migrate", CWM_DATABASE_URL="postgresql://nobody:hidden@127.0.0.1:9/none")

    assert "hidden" not in refused(run, "CWM-4001")
