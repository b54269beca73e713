"""What a stack that was killed leaves behind: processes and shared memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cwm.stack import proc, shm
from cwm.stack.runfile import RunFile


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that opened a session of its own, as every part does."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def left_by_a_killed_stack(path: Path, pid: int, name: str = "vllm", **changes: Any) -> RunFile:
    """A run file as a stack writes it that was then killed."""
    written = RunFile(path)
    written.begin({})
    written.part_started(name, pid, proc.start_time(pid))
    document = json.loads(path.read_text())
    document["parts"][name].update(changes.pop("part", {}))
    path.write_text(json.dumps({**document, **changes}))
    return RunFile(path)


@pytest.mark.parametrize("name", ["vllm", "postgres"])
async def test_what_was_left_running_is_stopped_and_named(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], name: str
) -> None:
    said: list[str] = []

    await left_by_a_killed_stack(tmp_path / "run.json", sleeper.pid, name).clear_leftovers(said.append)

    assert sleeper.wait(10) != 0
    assert said == [f"stopping {name} (process {sleeper.pid}), left behind by a run that was killed"]
    assert not (tmp_path / "run.json").exists()


async def test_a_stranger_with_a_reused_pid_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    run = left_by_a_killed_stack(tmp_path / "run.json", sleeper.pid, part={"started": 1})

    await run.clear_leftovers(pytest.fail)

    assert sleeper.poll() is None


async def test_nothing_of_an_earlier_boot_is_touched(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    run = left_by_a_killed_stack(tmp_path / "run.json", sleeper.pid, boot="another")

    await run.clear_leftovers(pytest.fail)

    assert sleeper.poll() is None


async def test_a_run_file_that_cannot_be_read_does_not_stop_a_start(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    await RunFile(path).clear_leftovers(pytest.fail)
    path.write_text('{"parts": {')

    await RunFile(path).clear_leftovers(pytest.fail)


def test_what_could_not_be_written_down_is_written_with_the_next_look(tmp_path: Path) -> None:
    path, segments = tmp_path / "run.json", [shm.Segment("psm_of_vllm", inode=1)]
    run = RunFile(path)
    run.begin({})
    path.unlink()
    path.mkdir()
    run.segments_seen(segments)
    path.rmdir()

    run.segments_seen(segments)

    assert json.loads(path.read_text())["shared_memory"] == {"psm_of_vllm": 1}


def test_a_segment_is_removed_only_when_nobody_maps_it() -> None:
    memory = SharedMemory(create=True, size=4096)
    (segment,) = {found for found in shm.mapped_by([proc_self()]) if found.name == memory.name.lstrip("/")}

    assert shm.unlink([segment]) == {segment}
    memory.close()
    assert shm.unlink([segment]) == set()
    assert not segment.path.exists()
    with pytest.raises(FileNotFoundError):
        memory.unlink()


def test_a_semaphore_is_found_though_it_is_mapped_under_another_name() -> None:
    lock = get_context("spawn").Lock()
    (name,) = [entry.name for entry in shm.FOLDER.iterdir() if entry.name == f"sem.{lock._semlock.name[1:]}"]  # type: ignore[attr-defined]

    assert name in {segment.name for segment in shm.mapped_by([proc_self()])}


def test_a_later_segment_of_the_same_name_is_not_ours() -> None:
    memory = SharedMemory(create=True, size=4096)
    memory.close()
    try:
        assert shm.unlink([shm.Segment(memory.name.lstrip("/"), inode=1)]) == set()
        assert (shm.FOLDER / memory.name.lstrip("/")).exists()
    finally:
        memory.unlink()


def test_lmcache_s_pool_is_not_taken_for_vllm_s(tmp_path: Path) -> None:
    name = f"of_a_test_{uuid4().hex}"
    memory = SharedMemory(f"lmcache_l1_pool_{name}", create=True, size=4096)
    try:
        assert memory.name not in {found.name for found in shm.mapped_by([proc_self()])}
    finally:
        memory.close()
        shm.unlink_lmcache_pools(name)
    with pytest.raises(FileNotFoundError):
        memory.unlink()


def proc_self() -> int:
    return int(Path("/proc/self").readlink().name)
