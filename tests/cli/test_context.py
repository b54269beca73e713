"""``cwm context``: shared context goes into a file and comes back, on another store too."""

from __future__ import annotations

import json
import os
from io import BytesIO
from pathlib import Path

import pytest

from cwm.adapters.sql.schema import upgrade
from cwm.domain.shared_context import ANSWERS, ContextScope, scope_of
from cwm.services.context.archive import ContextArchive
from tests.cli.command import cwm, refused
from tests.services.context_of import ANN, Replica, replica

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("anyio_backend")]

BUILD = scope_of("default", "s", "workspace:build")
TENANT = scope_of("default", "s", "tenant")
PRIVATE = scope_of("default", "s", "session")
ANSWERED = ContextScope("default", ANSWERS, f"{ANSWERS}:files")


@pytest.fixture
async def saved(tmp_path: Path) -> Path:
    """What an installation with a database file of its own saved."""
    folder = tmp_path / "from"
    folder.mkdir()
    url = f"sqlite:///{folder / 'cwm.db'}"
    await upgrade(url)
    async with replica(url, url) as one:
        for number in range(20):
            await one.set(f"files/{number}", {"n": number, "text": "ä " * 1000}, BUILD)
        await one.set("gone", 1, BUILD)
        await one.context.delete(ANN, BUILD, "gone")
        await one.set("fixed", "same", TENANT, immutable=True, priority=9, ttl_seconds=10**9)
        await one.set("copy", "same", TENANT)
        await one.set("secret", 1, PRIVATE)
    run = cwm(folder, "context", "export", "context.cwm")
    assert run.stderr == ""
    assert run.stdout.startswith("Saved 22 keys of 2 scopes (")
    assert [path.name for path in folder.iterdir() if "context" in path.name] == ["context.cwm"]
    assert (folder / "context.cwm").stat().st_mode & 0o777 == 0o600
    return folder / "context.cwm"


async def test_what_was_saved_is_set_on_another_store(
    saved: Path, tmp_path: Path, redis_url: str, sqlite_url: str
) -> None:
    for keys in (22, 0):
        run = cwm(tmp_path, "context", "import", str(saved), CWM_SHARED_STORE_URL=redis_url)
        assert run.stdout.startswith(f"Set {keys} keys of 2 scopes ("), run.stderr
    async with replica(redis_url, sqlite_url) as one:
        for number in range(20):
            assert await one.get(f"files/{number}", BUILD) == {"n": number, "text": "ä " * 1000}
        page = await one.context.list(TENANT, "", None, 10)
        assert [(e.key, e.priority, e.immutable) for e in page.entries] == [
            ("copy", 5, False),
            ("fixed", 9, True),
        ]
        assert (await one.context.get(BUILD, "gone")).entry is None
        assert (await one.context.get(BUILD, "files/0")).version == 1
        await one.context.delete(ANN, BUILD, "files/0")
    run = cwm(tmp_path, "context", "import", str(saved), CWM_SHARED_STORE_URL=redis_url)
    assert run.stdout.startswith("Set 1 keys")


@pytest.mark.parametrize("damage", ["nothing", "text", "cut", "byte", "end"])
def test_a_file_that_is_damaged_or_something_else_is_refused(
    saved: Path, tmp_path: Path, damage: str
) -> None:
    good = saved.read_bytes()
    # The first content begins behind the header's line and its own.
    at = good.index(b"\n", good.index(b"\n") + 1) + 5
    bad = {
        "nothing": b"",
        "text": b"hello\nworld\n",
        "cut": good[: len(good) // 2],
        "byte": good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :],
        "end": good[: good.rindex(b'{"end"')],
    }[damage]
    (tmp_path / "bad").write_bytes(bad)
    run = cwm(tmp_path, "context", "import", "bad")
    refused(run, "CWM-4004" if damage in {"cut", "byte", "end"} else "CWM-1003")


def test_a_file_is_not_where_it_should_be(tmp_path: Path) -> None:
    refused(cwm(tmp_path, "context", "import", "nowhere"), "CWM-4002")
    refused(cwm(tmp_path, "context", "export", "no/folder/file"), "CWM-4001")


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "round").symlink_to("round")
    for name in ("pipe", "link", "-"):
        refused(cwm(tmp_path, "context", "export", name), "CWM-1003", 2)
    for name in ("round", "n" * 300):
        refused(cwm(tmp_path, "context", "export", name), "CWM-4001")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").readlink() == Path("pipe")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "round"}


def test_an_archive_goes_where_a_link_leads_and_touches_nothing_else(saved: Path) -> None:
    folder = saved.parent
    longest = "n" * 255
    (folder / ".latest.part").write_text("another's")
    (folder / "latest").symlink_to("other/real")
    (folder / "other").mkdir()
    before = {path.name for path in folder.iterdir()}
    for _ in range(2):
        run = cwm(folder, "context", "export", "latest")
        assert run.stdout.startswith("Saved 22 keys"), run.stderr
    assert (folder / "latest").is_symlink()
    assert [path.name for path in (folder / "other").iterdir()] == ["real"]
    assert (folder / "other" / "real").stat().st_mode & 0o777 == 0o600
    assert (folder / ".latest.part").read_text() == "another's"
    assert cwm(folder, "context", "export", longest).returncode == 0
    assert {path.name for path in folder.iterdir()} == {*before, longest}


def test_a_link_out_of_its_folder_is_no_place_for_an_archive(saved: Path, tmp_path: Path) -> None:
    folder, victim = saved.parent / "clone", saved.parent / "victim"
    folder.mkdir()
    victim.write_text("precious")
    (folder / "backup").symlink_to("../victim")
    message = refused(cwm(saved.parent, "context", "export", "clone/backup"), "CWM-1003", 2)
    assert "clone/backup is a link to" in message
    assert "outside of its folder" in message
    assert victim.read_text() == "precious"


def test_the_archive_is_lines_of_json_with_bytes_between(saved: Path) -> None:
    with saved.open("rb") as file:
        kinds = []
        while line := file.readline():
            record = json.loads(line)
            kinds.append(next(iter(record)))
            file.read(record["bytes"])
    assert b"secret" not in saved.read_bytes()
    assert kinds == ["cwm_context", *["content"] * 21, "scope", "scope", "end"]


def archive_of(one: Replica) -> ContextArchive:
    return ContextArchive(one.context.index, one.store, one.context.clock, versions=10)


async def test_what_upstreams_answered_is_not_saved(sqlite_url: str) -> None:
    file = BytesIO()
    async with replica(sqlite_url, sqlite_url) as one:
        await one.set("ours", "kept", BUILD)
        await one.set("0/read", "someone else's", ANSWERED)
        archived = await archive_of(one).write("default", file)
    assert (archived.scopes, archived.keys, archived.contents) == (1, 1, 1)
    assert b"someone else" not in file.getvalue()


async def test_what_upstreams_answered_in_an_archive_of_old_is_passed_over(sqlite_url: str) -> None:
    file = BytesIO()
    async with replica(sqlite_url, sqlite_url) as one:
        await one.set("ours", "kept", BUILD)
        await archive_of(one).write("default", file)
        answered = file.getvalue().replace(b'"scope":"workspace:build"', b'"scope":"answers:files"')
        scope = file.getvalue()[file.getvalue().index(b'{"scope"') :]
        old = answered[: answered.index(b'{"end"')] + scope
        await one.context.delete(ANN, BUILD, "ours")
        archived = await archive_of(one).read("default", BytesIO(old))
        assert (archived.scopes, archived.keys) == (1, 1)
        assert await one.get("ours", BUILD) == "kept"
        assert [scope.name for scope in await one.context.index.scopes("default")] == ["workspace:build"]
