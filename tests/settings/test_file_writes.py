"""Files in folders that others may have made: no link leads a reader or a writer out of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cwm.settings.file_writes import LinkError, appended, read_text, write_text


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside of the folder ``clone``, which is there, too."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "file"
    path.write_text("precious")
    return path


def test_a_file_and_the_folders_above_it_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_text(path, "é", tmp_path)
    assert read_text(path, tmp_path) == "é"
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_file_keeps_its_permissions_and_a_new_one_has_those_that_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "one", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write_text(path, "two", mode=0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("two", 0o640)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_the_place_of_a_file_is_refused_and_what_it_leads_to_stays(
    victim: Path, dangling: bool
) -> None:
    folder = victim.parents[1] / "clone"
    target = victim.with_name("new") if dangling else victim
    (folder / "file").symlink_to(target)
    for use in (
        lambda: write_text(folder / "file", "x", folder),
        lambda: write_text(folder / "file", "x"),
        lambda: read_text(folder / "file", folder),
        lambda: appended(folder / "file"),
    ):
        with pytest.raises(LinkError) as refusal:
            use()
        assert refusal.value.filename == str(folder / "file")
    assert victim.read_text() == "precious"
    assert [each.name for each in victim.parent.iterdir()] == ["file"]
    assert [each.name for each in folder.iterdir()] == ["file"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(depth=st.integers(1, 5), at=st.integers(0, 4), reading=st.booleans())
def test_a_link_in_the_place_of_any_folder_is_refused(
    victim: Path, tmp_path_factory: pytest.TempPathFactory, depth: int, at: int, reading: bool
) -> None:
    folder = tmp_path_factory.mktemp("clone")
    names = [str(number) for number in range(depth)]
    above = folder.joinpath(*names[: min(at, depth - 1)])
    above.mkdir(parents=True, exist_ok=True)
    link = above / names[min(at, depth - 1)]
    link.symlink_to(victim.parent)
    path = folder.joinpath(*names, "file")
    with pytest.raises(LinkError) as refusal:
        read_text(path, folder) if reading else write_text(path, "x", folder)
    assert refusal.value.filename == str(link)
    assert victim.read_text() == "precious"
    assert [each.name for each in victim.parent.iterdir()] == ["file"]


def test_the_given_folder_itself_may_be_a_link(victim: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to("clone")
    write_text(tmp_path / "here" / "file", "x", tmp_path / "here")
    assert (tmp_path / "clone" / "file").read_text() == "x"


def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="not a regular file"):
            write_text(tmp_path / name, "x")
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read_text(tmp_path / name, tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"pipe", "folder"}


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "\ud83d")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "before")]


def test_a_log_is_written_on(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        with appended(tmp_path / "log") as log:
            log.write(line)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
