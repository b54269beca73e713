"""What demos that were killed leave behind is cleared by whoever starts next."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cwm.stack import proc
from cwm.stack.errors import StackError
from cwm.stack.leftovers import clear_abandoned, socket_folder, temporary_folder
from cwm.stack.locks import FileLock
from tests.stack.shapes import Eventually

pytestmark = pytest.mark.slow

DEMO = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path

from cwm.settings import LocalEngine, Storage
from cwm.stack import local, plan, shm
from tests.stack import stand_ins

local.prepare_environment, local.prepare_model = stand_ins.environment, stand_ins.model
plan._shm_free_gb = lambda: 32.0
plan._free_gb = lambda: 64.0
home, folder = map(Path, sys.argv[1:])
folder.mkdir()

async def main():
    wanted = local.plan_from_settings(
        Storage(storage_path=folder / "storage"),
        LocalEngine(home=home, model="tiny", device="cpu"),
        withheld=frozenset(),
    )
    async with stand_ins.StandIns(replace(wanted, run_folder=folder / "run", temporary=folder), report=print):
        pool = shm.FOLDER / f"lmcache_l1_pool_{wanted.key}"
        pool.write_bytes(bytes(4096))
        print("pool", pool, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of what a test starts, with room for sockets, which goes with what is left there."""
    with tempfile.TemporaryDirectory(prefix="cwm-test-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@contextmanager
def demo(home: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A stack in a folder of its own, as the demo has it, and its pool."""
    with subprocess.Popen(
        [sys.executable, "-c", DEMO, str(home), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pool = Path(next(line for line in process.stdout if line.startswith("pool")).split()[1])
        try:
            yield process, pool
        finally:
            process.kill()
            pool.unlink(missing_ok=True)


def run_of(home: Path, pool: Path) -> Path:
    """The run file of the stack that has ``pool``."""
    return home / "run" / f"cwm-{pool.name.rpartition('cwm-')[2]}.json"


def folders_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def written(home: Path) -> list[Path]:
    return sorted(path for path in (home / "run").iterdir() if path.name.startswith("cwm-"))


async def test_the_pool_of_a_demo_that_was_killed_is_removed_and_nothing_of_it_is_left(
    tmp_path: Path, eventually: Eventually
) -> None:
    home = tmp_path / "home"
    with demo(home, tmp_path / "demo") as (process, pool):
        parts: dict[str, Any] = json.loads(run_of(home, pool).read_text())["parts"]
        process.kill()
        process.wait()
        await eventually(lambda: all(proc.start_time(part["pid"]) is None for part in parts.values()))
        assert pool.exists()
        # One of `cwm up` has it here, with the password of its Redis.
        of_another_engine = pool.with_name(f"{pool.name}-2")
        of_another_engine.touch()
        for part in ("lmcache", "lmcache-2"):
            run_of(home, pool).with_suffix(f".{part}.json").touch()

        await clear_abandoned(home, pytest.fail)

        assert not pool.exists()
        assert not of_another_engine.exists()
    assert written(home) == []


async def test_a_stack_that_lives_keeps_all_that_is_its_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo(home, tmp_path / "demo") as (_, pool):
        before = written(home)

        await clear_abandoned(home, pytest.fail)

        assert pool.exists()
        assert (tmp_path / "demo" / "storage").is_dir()
        assert written(home) == before


async def test_a_stack_without_a_lock_is_asked_after_by_its_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo(home, tmp_path / "demo") as (_, pool):
        run_of(home, pool).with_suffix(".lock").unlink()

        await clear_abandoned(home, pytest.fail)

        assert pool.exists()
        assert (tmp_path / "demo" / "storage").is_dir()


@pytest.mark.parametrize("theirs", [False, True], ids=["its own", "another's of the same name"])
async def test_the_folder_of_a_demo_that_was_killed_is_removed_with_it(tmp_path: Path, theirs: bool) -> None:
    home, folder = tmp_path / "home", tmp_path / "demo"
    with demo(home, folder) as (process, _):
        process.kill()
        process.wait()
        if theirs:
            folder.rename(tmp_path / "moved")
            folder.mkdir()

        await clear_abandoned(home, print)

    assert folder.exists() == theirs
    assert written(home) == []


async def test_a_link_in_the_place_of_a_killed_demo_s_folder_leads_to_nothing_that_is_removed(
    tmp_path: Path,
) -> None:
    home, folder = tmp_path / "home", tmp_path / "demo"
    with demo(home, folder) as (process, _):
        process.kill()
        process.wait()
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")

        await clear_abandoned(home, print)

    assert (tmp_path / "moved" / "storage").is_dir()


async def test_the_folder_of_a_killed_vllm_s_sockets_is_removed(tmp_path: Path, temporary: Path) -> None:
    home = tmp_path / "home"
    with demo(home, tmp_path / "demo") as (process, _):
        (sockets,) = folders_in(temporary)
        process.kill()
        process.wait()

        await clear_abandoned(home, print)

        assert not sockets.exists()
    assert written(home) == []


@pytest.mark.parametrize(("too_much", "elsewhere"), [(0, False), (1, True)], ids=["the longest", "longer"])
def test_a_folder_of_sockets_has_room_for_their_names_wherever_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path, too_much: int, elsewhere: bool
) -> None:
    deep = temporary / ("d" * (106 + too_much - len(f"{temporary}/cwm-12345678/{uuid.uuid4()}")))
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    with socket_folder(tmp_path / "home") as folder, closing(socket.socket(socket.AF_UNIX)) as met:
        met.bind(f"{folder}/{uuid.uuid4()}")
        assert (folder.parent != deep) == elsewhere
    assert not folder.exists()


async def test_a_pool_that_somebody_still_has_mapped_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with demo(home, tmp_path / "demo") as (process, pool):
        process.kill()
        process.wait()
        with pool.open("r+b") as file, closing(mmap.mmap(file.fileno(), 0)):
            await clear_abandoned(home, print)

            assert pool.exists()


async def test_what_a_stack_that_was_killed_before_it_wrote_anything_down_left_is_removed(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    for name in ("lock", "lmcache.json"):
        lock = FileLock(run / f"cwm-{'0' * 12}.{name}")
        lock.take()
        lock.release()
    preparing = FileLock(run / f"cwm-{'1' * 12}.lock")
    preparing.take()

    await clear_abandoned(tmp_path, pytest.fail)

    assert [path.name for path in written(tmp_path)] == [f"cwm-{'1' * 12}.lock"]
    preparing.release()


def test_a_home_that_is_no_folder_is_told_and_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "temporary"
    home.touch()
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    with pytest.raises(StackError, match="cannot be written"), temporary_folder(home, "cwm-"):
        pytest.fail("there is nowhere to write it down")
    assert list(folder.iterdir()) == []


async def test_what_cannot_be_cleared_is_told_and_does_not_stop_a_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await clear_abandoned(home, pytest.fail)
    run = home / "run" / f"cwm-{'0' * 12}.json"
    run.mkdir(parents=True)
    run.with_suffix(".lock").mkdir()

    told: list[str] = []
    await clear_abandoned(home, told.append)
    assert [run.stem in line for line in told] == [True]


async def test_a_folder_that_cannot_be_removed_yet_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "demo"
    with demo(home, folder) as (process, _):
        process.kill()
        process.wait()
        told: list[str] = []
        with monkeypatch.context() as busy:
            busy.setattr(shutil, "rmtree", refused)
            await clear_abandoned(home, told.append)
        assert "Device or resource busy" in told[-1]
        assert folder.exists()

        await clear_abandoned(home, print)

    assert not folder.exists()
    assert written(home) == []


def refused(folder: Path) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))
