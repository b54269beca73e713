"""Programs in sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr

from cwm.settings import GROUPS
from cwm.stack import proc
from cwm.stack.child import Child, gone
from tests.stack.shapes import Eventually

FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print("two", flush=True)
child.wait()
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    signal.pause()
"""


async def started(script: str, python: str, log: Path, says: str, eventually: Eventually) -> Child:
    child = await Child.start([python, "-c", script], {}, log)
    await eventually(lambda: says in log.read_text())
    return child


async def test_a_program_s_own_children_end_with_it(
    tmp_path: Path, python: str, eventually: Eventually
) -> None:
    child = await started(FAMILY, python, tmp_path / "log", "two", eventually)

    assert len(child.pids()) == 2
    assert await child.stop(10)
    assert child.pids() == []


async def test_a_program_that_does_not_stop_is_killed_after_its_grace(
    tmp_path: Path, python: str, eventually: Eventually
) -> None:
    child = await started(STUBBORN, python, tmp_path / "log", "deaf", eventually)

    assert not await child.stop(0.2)
    assert await child.ended() == -signal.SIGKILL
    assert child.pids() == []


async def test_a_crash_takes_the_whole_session(tmp_path: Path, python: str, eventually: Eventually) -> None:
    child = await started(FAMILY, python, tmp_path / "log", "two", eventually)

    child.kill()

    assert await child.ended() == -signal.SIGKILL
    assert await gone(child.pid, 10)


async def test_variables_are_added_and_the_gateway_s_secrets_withheld(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [(name, spec) for group in GROUPS.values() for name, spec in group.model_fields.items()]
    secrets = [name for name, spec in fields if SecretStr in {spec.annotation, *get_args(spec.annotation)}]
    assert len(secrets) > 5
    for name in secrets:
        monkeypatch.setenv(f"CWM_{name.upper()}", "hush")
    monkeypatch.setenv("CWM_API_KEY_FILE", "hush")
    monkeypatch.setenv("PYTHONPATH", "hush")
    script = (
        "import os; print([name for name, value in os.environ.items() if value == 'hush'], os.environ['NEW'])"
    )
    child = await Child.start([python, "-c", script], {"NEW": "here"}, tmp_path / "log")

    assert await child.ended() == 0
    assert (tmp_path / "log").read_text() == "[] here\n"


async def test_what_is_withheld_besides_is_not_there_unless_every_program_needs_it(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "hush")
    script = "import os; print(os.environ.get('NOTES_TOKEN'), os.environ['PATH'])"
    child = await Child.start([python, "-c", script], {}, tmp_path / "log", {"NOTES_TOKEN", "PATH"})

    assert await child.ended() == 0
    assert (tmp_path / "log").read_text() == f"None {os.environ['PATH']}\n"


async def test_a_part_that_needs_a_withheld_variable_is_given_it(tmp_path: Path, python: str) -> None:
    script = "import os; print(os.environ['PYTHONPATH'])"
    child = await Child.start([python, "-c", script], {"PYTHONPATH": "/engine"}, tmp_path / "log")

    assert await child.ended() == 0
    assert (tmp_path / "log").read_text() == "/engine\n"


ORPHANING = """
import asyncio, sys
from pathlib import Path
from cwm.stack.child import Child

async def main():
    child = await Child.start(["sleep", "600"], {}, Path(sys.argv[1]))
    print(child.pid, flush=True)
    await child.ended()

asyncio.run(main())
"""


@pytest.fixture
def stack(tmp_path: Path, python: str) -> Iterator[subprocess.Popen[str]]:
    """A process that starts a part and prints its pid."""
    with subprocess.Popen(
        [python, "-c", ORPHANING, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


async def test_a_part_ends_when_the_stack_that_started_it_is_killed(
    stack: subprocess.Popen[str], eventually: Eventually
) -> None:
    assert stack.stdout is not None
    part = int(stack.stdout.readline())
    assert proc.start_time(part) is not None

    stack.kill()

    await eventually(lambda: proc.start_time(part) is None)
