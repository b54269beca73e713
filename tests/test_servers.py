"""A run of tests that is killed leaves a server of theirs behind until the next."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cwm.stack import proc
from cwm.stack.leftovers import clear_abandoned

RUN = """
import os, sys
from pathlib import Path
from tests import postgres

with postgres.server(os.environ.get("CWM_TEST_PG_BIN"), Path(sys.argv[1])):
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["ordinary", "killed"])
def test_a_postgres_of_tests_is_gone_with_its_folder_at_the_latest_when_the_next_run_begins(
    tmp_path: Path, killed: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        (written,) = (tmp_path / "run").glob("*.json")
        noted = json.loads(written.read_text())
        folder, server = Path(noted["temporary"]["folder"]), noted["parts"]["postgres"]
        assert proc.start_time(server["pid"]) == server["started"]
        if killed:
            process.kill()
    assert folder.exists() == killed

    asyncio.run(clear_abandoned(tmp_path, print))

    assert not folder.exists()
    assert proc.start_time(server["pid"]) != server["started"]
    assert list((tmp_path / "run").iterdir()) == []


def test_no_test_keeps_anything_in_the_home_of_whoever_runs_it() -> None:
    """Where a `cwm up` may run meanwhile. What is prepared once is linked from there, and other tools have a cache."""
    tests = Path(__file__).parent
    may_name_it = {"live/engine.py", "prepared.py", "test_servers.py"}
    naming = {
        str(file.relative_to(tests))
        for file in tests.rglob("*.py")
        if re.search(r"Path\.home\(\)|LocalEngine\(\)\.home", file.read_text())
    }

    assert naming - may_name_it == set()


def test_every_engine_of_the_tests_has_the_home_of_the_tests() -> None:
    for file in (Path(__file__).parent / "live").glob("*.py"):
        text = file.read_text()
        for started in re.findall(r'"-m",\s+"cwm",\s+"(?:up|demo)"', text):
            assert 'CWM_HOME": str(engine_home())' in text, (file.name, started)
