"""A supervised part: started, watched, started again."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cwm.stack.child import Child
from cwm.stack.environment import Report
from cwm.stack.errors import StackError
from cwm.stack.logs import LogWatch, fresh_log
from cwm.stack.part import Hooks, Part, Recipe
from tests.eventually import eventually

pytestmark = pytest.mark.slow

LIVES = "import sys; print('up', flush=True); sys.stdin.close(); import signal; signal.pause()"
DIES = "raise SystemExit('no weights here')"


@dataclass
class Stage:
    """Where a part stands: its folder, what was said, what was told to the stack."""

    folder: Path
    python: str
    said: list[str] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    report: Report | None = None

    def part(self, script: str, *needs: Part, start_seconds: float = 20, port: int | None = None) -> Part:
        log = fresh_log(self.folder, "valkey")
        recipe = Recipe(
            "valkey",
            "Valkey",
            [self.python, "-c", script],
            {},
            answers=lambda: self._answers(log),
            start_seconds=start_seconds,
            stop_seconds=5,
            port=port,
        )
        report = self.report or self.said.append
        return Part(recipe, needs, log, Hooks(report, self._started, self._polled, self._cleared))

    @asynccontextmanager
    async def running(self, part: Part) -> AsyncIterator[Part]:
        try:
            await part.start()
            yield part
        finally:
            await part.stop()

    async def _answers(self, log: Path) -> bool:
        return self._lives(log) == len(self.started)

    @staticmethod
    def _lives(log: Path) -> int:
        return log.read_text().count("up")

    def _started(self, _name: str, child: Child) -> None:
        self.started.append(child.pid)

    async def _polled(self, _name: str) -> None:
        """A stack would look at shared memory here."""

    async def _cleared(self, name: str) -> None:
        self.cleared.append(name)


@pytest.fixture
def stage(tmp_path: Path, python: str) -> Stage:
    return Stage(tmp_path, python)


async def test_a_part_that_is_killed_is_started_again(stage: Stage) -> None:
    async with stage.running(stage.part(LIVES)) as part:
        first = part.pids()
        part.kill()
        assert not part.ready.is_set(), "known to be down at once"
        await asyncio.wait_for(part.ready.wait(), 20)

        assert part.restarts == 1
        assert part.pids() != first
        assert "Valkey ended (SIGKILL); starting it again" in stage.said
        assert stage.cleared == ["valkey"]
    assert part.pids() == []


async def test_a_part_that_never_gets_ready_is_given_up_with_its_last_words(stage: Stage) -> None:
    with pytest.raises(StackError, match="no weights here"):
        async with stage.running(stage.part(DIES)):
            pytest.fail("it cannot have started")

    assert len(stage.started) == 2


async def test_a_part_that_starts_for_too_long_is_killed(stage: Stage) -> None:
    with pytest.raises(StackError, match="does not start"):
        async with stage.running(stage.part("import signal; signal.pause()", start_seconds=0.3)):
            pytest.fail("it cannot have started")


async def test_an_answer_from_somebody_else_s_port_is_not_taken_for_its_own(stage: Stage) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
        part = stage.part(LIVES, start_seconds=0.5, port=stranger.getsockname()[1])
        with pytest.raises(StackError, match="does not start"):
            async with stage.running(part):
                pytest.fail("it was the stranger that answered")


async def test_a_part_that_cannot_be_brought_back_says_so(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.stack.part._BACKOFF_SECONDS", (0.0,))
    once = f"import pathlib; p = pathlib.Path({str(tmp_path / 'ran')!r})\nif p.exists(): {DIES}\np.touch(); {LIVES}"
    async with stage.running(stage.part(once)) as part:
        part.kill()
        with pytest.raises(StackError, match="5 attempts failed"):
            await asyncio.wait_for(asyncio.shield(part.failed), 30)


async def test_whatever_ends_the_supervision_of_a_part_is_told(stage: Stage) -> None:
    def report(line: str) -> None:
        if "ended" in line:
            raise ValueError("a line nobody thought of")

    stage.report = report
    async with stage.running(stage.part(LIVES)) as part:
        part.kill()
        with pytest.raises(StackError, match="a line nobody thought of"):
            await asyncio.wait_for(asyncio.shield(part.failed), 20)


async def test_a_part_is_started_again_though_the_machine_had_no_process_left(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Child.start
    refusals = iter([BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")])

    async def refused_once(*given: Any) -> Child:
        for refusal in refusals:
            raise refusal
        return await start(*given)

    async with stage.running(stage.part(LIVES)) as part:
        monkeypatch.setattr(Child, "start", refused_once)
        part.kill()
        await asyncio.wait_for(part.ready.wait(), 20)

    assert "Valkey could not be started: [Errno 11] Resource temporarily unavailable" in stage.said


async def test_a_part_waits_for_the_one_it_needs(stage: Stage, tmp_path: Path, python: str) -> None:
    needed = Stage(tmp_path / "needed", python).part(LIVES)
    dependent = stage.part(LIVES, needed)
    starting = asyncio.create_task(dependent.start())
    try:
        await needed.start()
        await asyncio.wait_for(starting, 20)
        assert dependent.ready.is_set()
    finally:
        await dependent.stop()
        await needed.stop()


async def test_an_outage_lasts_until_it_is_ended(stage: Stage) -> None:
    async with stage.running(stage.part(LIVES)) as part:
        part.hold_down()
        await eventually(lambda: part.restarts == 1)
        assert len(stage.started) == 1
        part.let_up()
        await asyncio.wait_for(part.ready.wait(), 20)
        assert len(stage.started) == 2


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    fresh_log(tmp_path, "vllm").write_text("yesterday")

    assert fresh_log(tmp_path, "vllm").read_text() == ""
    assert (tmp_path / "vllm.log.1").read_text() == "yesterday"


def test_errors_in_a_log_are_told_once_and_without_colours(tmp_path: Path) -> None:
    log = fresh_log(tmp_path, "vllm")
    watch = LogWatch(log)
    with log.open("a") as file:
        file.write("all is well\n\x1b[31m(EngineCore) ERROR bad\x1b[0m\n" + "ERROR again\n" * 5)

    assert watch.errors() == ["(EngineCore) ERROR bad", "ERROR again", "ERROR again", "… and 3 more"]
    assert watch.errors() == []


def test_a_log_that_grows_too_large_is_emptied_while_it_is_written(tmp_path: Path) -> None:
    log = fresh_log(tmp_path, "vllm")
    watch = LogWatch(log, largest_bytes=1000)
    with log.open("a") as file:
        file.write("x" * 1001 + "\n")
        file.flush()
        watch.errors()
        file.write("ERROR after it\n")
        file.flush()

        assert watch.errors() == ["ERROR after it"]
    assert log.read_text() == "ERROR after it\n"
    assert (tmp_path / "vllm.log.1").stat().st_size == 1002
