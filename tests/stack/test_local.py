"""The stack as a whole, with programs that only live in the places of its parts."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cwm.stack import local
from cwm.stack.commands import VARIABLES, Commands
from cwm.stack.environment import EngineEnvironment, Report
from cwm.stack.local import LocalStack
from cwm.stack.models import Model
from cwm.stack.part import Recipe
from cwm.stack.plan import StackPlan
from cwm.stack.ports import ReservedPorts
from tests.eventually import eventually
from tests.stack.shapes import PlanFor

pytestmark = pytest.mark.slow

LIVES = "import signal; signal.pause()"


@dataclass
class Terminal:
    """Where the stack reports to; ``gone`` like one that was closed."""

    said: list[str] = field(default_factory=list)
    gone: bool = False

    def write(self, line: str) -> None:
        if self.gone:
            raise OSError(errno.EIO, "Input/output error")
        self.said.append(line)


class StandIns(LocalStack):
    """A stack whose LMCache and vLLM are programs that do nothing; everything around them is real."""

    def __init__(self, plan: StackPlan, *, report: Report, lmcache: str = LIVES, vllm: str = LIVES) -> None:
        super().__init__(plan, report=report)
        self._lmcache, self._vllm = lmcache, vllm

    def _recipes(self, commands: Commands, arguments: Path, reserved: ReservedPorts) -> Sequence[Recipe]:
        return [
            Recipe("lmcache", "LMCache", _python(self._lmcache), VARIABLES, _answers, 20, 1),
            Recipe("vllm", "vLLM", _python(self._vllm), VARIABLES, _answers, 20, 1),
        ]

    async def _connected(self) -> bool:
        return True


def _python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


async def _answers() -> bool:
    return True


@pytest.fixture
def plan(plan_for: PlanFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackPlan:
    """A plan whose environment and model are there."""

    async def environment(*_: object) -> EngineEnvironment:
        return EngineEnvironment(tmp_path)

    async def model(*_: object) -> Model:
        return Model(tmp_path, "none", 64, "0" * 32)

    monkeypatch.setattr(local, "prepare_environment", environment)
    monkeypatch.setattr(local, "prepare_model", model)
    monkeypatch.setattr(local, "_WATCH_SECONDS", 0.01)
    return plan_for(model="tiny")


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


async def test_parts_are_kept_alive_after_the_terminal_is_gone(plan: StackPlan, terminal: Terminal) -> None:
    async with StandIns(plan, report=terminal.write) as stack:
        terminal.gone = True
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)


async def test_parts_are_kept_alive_while_nothing_can_be_written_down(
    plan: StackPlan, terminal: Terminal
) -> None:
    written = plan.run_folder / f"{plan.key}.json"
    async with StandIns(plan, report=terminal.write) as stack:
        written.unlink()
        written.mkdir()  # as unwritable as on a full disk
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)
        written.rmdir()


async def test_the_other_logs_are_watched_after_one_was_removed(plan: StackPlan, terminal: Terminal) -> None:
    logs = plan.run_folder / "logs"
    async with StandIns(plan, report=terminal.write):
        (logs / "lmcache.log").unlink()
        with (logs / "vllm.log").open("a") as log:
            log.write("ERROR out of blocks\n")
        await eventually(lambda: "vllm: ERROR out of blocks" in terminal.said)
