"""A stack whose LMCache and vLLM are programs that only live."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from cwm.stack.commands import VARIABLES, Commands
from cwm.stack.engine import StackEngine
from cwm.stack.environment import EngineEnvironment, Report
from cwm.stack.local import LocalStack
from cwm.stack.models import Model
from cwm.stack.part import Recipe
from cwm.stack.plan import StackPlan

LIVES = "import signal; print('up', flush=True); signal.pause()"


class StandIns(LocalStack):
    """A stack whose LMCache and vLLM are programs that do nothing; everything around them is real."""

    def __init__(self, plan: StackPlan, *, report: Report, lmcache: str = LIVES, vllm: str = LIVES) -> None:
        super().__init__(plan, report=report)
        self._lmcache, self._vllm = lmcache, vllm

    def _shared_recipes(self, _: StackEngine) -> Sequence[Recipe]:
        return []

    def _recipes(self, engine: StackEngine, undo: AsyncExitStack) -> Sequence[Recipe]:
        lmcache, vllm = super()._recipes(engine, undo)
        return [
            self._recipe(lmcache, self._lmcache, VARIABLES),
            self._recipe(vllm, self._vllm, engine.commands.vllm_variables()),
        ]

    async def _check(self, commands: Commands) -> None:
        pass

    def _recipe(self, real: Recipe, script: str, variables: Mapping[str, str]) -> Recipe:
        async def answers() -> bool:
            return "up" in log_of(self.plan, real.name)

        return Recipe(
            real.name,
            real.title,
            [sys.executable, "-c", script],
            variables,
            answers,
            start_seconds=20,
            stop_seconds=1,
            engine=real.engine,
        )

    async def _connected(self) -> bool:
        return True


def log_of(plan: StackPlan, part: str) -> str:
    log = plan.logs / f"{part}.log"
    return log.read_text() if log.exists() else ""


async def environment(home: Path, *_: object) -> EngineEnvironment:
    """In the place of ``prepare_environment``."""
    return EngineEnvironment(home)


async def model(_wanted: str, home: Path, *_: object) -> Model:
    """In the place of ``prepare_model``."""
    return Model(home, "none", 64)
