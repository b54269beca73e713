"""Nothing of a benchmark that was killed outlives it for long: its servers end with it, its folders go with the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cwm.stack import proc
from cwm.stack.leftovers import clear_abandoned
from tests.eventually import eventually

pytestmark = pytest.mark.slow

SCALE = ("bench", "scale", "--windows", "1000", "--rounds", "5")
STORES = {"postgres", "valkey-server"}
GATEWAYS = 2


@contextmanager
def benchmark(home: Path, until: str) -> Iterator[subprocess.Popen[str]]:
    """``cwm bench scale`` from when it tells ``until``; killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "cwm", *SCALE],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CWM_HOME": str(home)},
    ) as process:
        try:
            assert process.stderr is not None
            assert any(until in line for line in process.stderr)
            yield process
        finally:
            process.kill()


def children(parent: int) -> dict[int, str]:
    """Their names, by pid."""
    tasks = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in tasks}


def runs_all(servers: dict[int, str]) -> bool:
    """One that was only just forked has this process's folder still."""
    there = set(servers.values()) >= STORES and len(servers) == len(STORES) + GATEWAYS
    return there and Path.cwd() not in folders_of(servers)


def folders_of(pids: dict[int, str]) -> set[Path]:
    return {Path(f"/proc/{pid}/cwd").readlink() for pid in pids}


def existing(folders: set[Path]) -> list[Path]:
    return [folder for folder in folders if folder.exists()]


async def test_what_a_killed_benchmark_ran_ends_with_it_and_what_it_kept_goes_with_the_next(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with benchmark(home, "minutes of mixed calls") as process:
        await eventually(lambda: runs_all(children(process.pid)))
        servers = children(process.pid)
        kept = folders_of(servers)
        began = {pid: proc.start_time(pid) for pid in servers}
        process.kill()
    await eventually(lambda: all(proc.start_time(pid) != start for pid, start in began.items()))

    with benchmark(home, "windows into"):
        assert existing(kept) == []
    await clear_abandoned(home, print)
    assert list((home / "run").iterdir()) == []
