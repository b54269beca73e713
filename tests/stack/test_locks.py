"""Locks between processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from cwm.stack.errors import StackError
from cwm.stack.locks import FileLock, locked


def test_a_lock_has_one_holder_and_says_who(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")

    assert first.take()
    assert not second.take()
    assert second.holder() == str(os.getpid())
    first.release()
    assert second.take()
    second.release()


def test_a_lock_whose_file_is_removed_as_it_is_taken_is_taken_on_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, taking = tmp_path / "lock", fcntl.flock
    first, second, third = FileLock(path), FileLock(path), FileLock(path)
    assert first.take()

    def removed_before(descriptor: int, kind: int) -> None:
        monkeypatch.undo()
        path.unlink()
        first.release()
        taking(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    assert second.take()
    assert not third.take()
    second.release()


@pytest.mark.parametrize("below", ["lock", "folder/lock"])
def test_a_lock_below_a_file_is_told_as_that(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(StackError, match=f"{file} is not a folder.*CWM_STORAGE_PATH"):
        FileLock(file / below).take()


def test_a_lock_ends_with_a_holder_that_is_killed(tmp_path: Path, python: str) -> None:
    lock = FileLock(tmp_path / "lock")
    script = (
        "import sys; from pathlib import Path; from cwm.stack.locks import FileLock\n"
        "print(FileLock(Path(sys.argv[1])).take(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [python, "-c", script, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not lock.take()
        holder.kill()
        holder.wait()
        assert lock.take()
        lock.release()


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("not a folder")

    with pytest.raises(StackError, match=r"storage.*CWM_STORAGE_PATH"):
        FileLock(tmp_path / "storage" / "lock").take()


async def test_whoever_waits_for_a_lock_is_told_once_and_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    told: list[str] = []
    heard = asyncio.Event()
    first = FileLock(path)
    assert first.take()

    def waiting(holder: str) -> None:
        told.append(holder)
        heard.set()

    async def wait_for_it() -> None:
        async with locked(path, waiting):
            told.append("mine")

    task = asyncio.create_task(wait_for_it())
    await asyncio.wait_for(heard.wait(), 10)
    first.release()
    await asyncio.wait_for(task, 10)

    assert told == [str(os.getpid()), "mine"]


def test_a_lock_is_no_way_to_another_file(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "lock"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(StackError, match="symbolic links"):
        FileLock(path).take()
    assert victim.read_text() == "precious"
