"""The terminal of a command is closed while it runs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cwm.stack import proc
from tests.cli.command import environment, serving

pytestmark = pytest.mark.slow

# The leader of a session gets the terminal that it opens as its own. Whoever runs the tests may ignore SIGHUP.
ON_TERMINAL = (
    "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.open(os.ttyname(0), os.O_RDWR)"
)
CWM = f"{ON_TERMINAL}; from cwm.__main__ import main; main()"
WITH_STAND_INS = f"""
{ON_TERMINAL}
from cwm.__main__ import main
from cwm.stack import local, plan
from tests.stack import stand_ins

local.LocalStack = stand_ins.StandIns
local.prepare_environment, local.prepare_model = stand_ins.environment, stand_ins.model
plan._shm_free_gb = lambda: 32.0
plan._free_gb = lambda: 64.0
main()
"""


@contextmanager
def on_terminal(
    folder: Path, script: str, *arguments: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program and the other end of its terminal, which is closed by whoever uses it."""
    ours, its = pty.openpty()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env=environment(folder, {"PYTHONPATH": str(Path.cwd()), **variables}),
            stdin=its,
            stdout=its,
            stderr=log,
            start_new_session=True,
        )
        os.close(its)
        with process:
            try:
                yield process, ours
            finally:
                process.kill()


def read_until(terminal: int, wanted: str) -> str:
    said = b""
    while wanted.encode() not in said:
        said += os.read(terminal, 4096)
    return said.decode()


def test_up_whose_terminal_is_closed_stops_all_of_it(tmp_path: Path) -> None:
    up = ("up", "--model", "tiny", "--device", "cpu", "--port", "0", "--storage-path", str(tmp_path / "kv"))
    with on_terminal(tmp_path, WITH_STAND_INS, *up, CWM_HOME=str(tmp_path / "home")) as (process, terminal):
        read_until(terminal, "CWM is ready: ")
        written = list((tmp_path / "home" / "run").glob(f"cwm-{'?' * 12}.json"))
        parts: dict[str, Any] = {
            name: part for path in written for name, part in json.loads(path.read_text())["parts"].items()
        }
        os.close(terminal)

        assert process.wait(60) == 0
    assert len(parts) == 2
    assert [name for name, part in parts.items() if proc.start_time(part["pid"]) is not None] == []
    assert [path for path in written if path.exists()] == []
    assert (tmp_path / "log").read_text() == ""


def test_serve_whose_terminal_is_closed_ends_in_order(tmp_path: Path) -> None:
    with on_terminal(tmp_path, CWM, "serve", "--port", "0") as (process, terminal):
        read_until(terminal, "No auth")
        os.close(terminal)

        assert process.wait(60) == 0
    assert (tmp_path / "log").read_text() == ""


@pytest.fixture
def ignored_hangup() -> Iterator[None]:
    """As ``nohup`` starts a program."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("ignored_hangup")
def test_a_hangup_that_whoever_started_it_ignores_stays_ignored(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, process):
        status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))

    assert int(ignored, 16) & 1 << signal.SIGHUP - 1
