"""Keeps one part of the stack running: starts it, waits until it answers, starts it again when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import NoReturn

from cwm.background import cancel_and_wait
from cwm.stack import proc
from cwm.stack.child import Child
from cwm.stack.commands import PartName
from cwm.stack.environment import Report
from cwm.stack.errors import StackError
from cwm.stack.logs import last_lines

_POLL_SECONDS = 0.1
_REPORT_SECONDS = 5.0
_LAST_LINES = 30
_FIRST_START_DEATHS = 2  # a wrong setting dies every time; a user should not wait for five
_RESTART_DEATHS = 5
_BACKOFF_SECONDS = (0.0, 0.5, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start one part and check it. ``answers`` returns False until the part responds."""

    name: PartName
    title: str
    argv: Sequence[str]
    variables: Mapping[str, str]
    answers: Callable[[], Awaitable[bool]]
    start_seconds: float
    stop_seconds: float
    port: int | None = None
    listeners: Sequence[str] = ()
    """The names of its ports in ``Ports``."""
    warm_up: Callable[[], Awaitable[object]] | None = None
    before_start: Callable[[], None] = field(default=lambda: None)
    withheld: frozenset[str] = frozenset()
    engine: int = 0
    """The number of the engine that it is a part of; 0 if all engines need it."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks from a part to its stack."""

    report: Report
    started: Callable[[PartName, Child], None]
    polled: Callable[[PartName], Awaitable[None]]
    cleared: Callable[[PartName], Awaitable[None]]


class Part:
    """A supervised part. ``ready`` is set while it answers."""

    def __init__(self, recipe: Recipe, needs: Sequence[Part], log: Path, hooks: Hooks) -> None:
        self.recipe, self.log = recipe, log
        self.ready = asyncio.Event()
        self.restarts = 0
        self._may_start = asyncio.Event()
        self._may_start.set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._needs, self._hooks = needs, hooks
        self._child: Child | None = None
        self._keeper: asyncio.Task[NoReturn] | None = None

    @property
    def name(self) -> PartName:
        return self.recipe.name

    def pids(self) -> list[int]:
        return self._child.pids() if self._child else []

    async def start(self) -> None:
        """Start the part and keep it running from then on. Raises StackError."""
        child = await self._until_ready(_FIRST_START_DEATHS)
        self._keeper = asyncio.create_task(self._keep(child), name=f"keep {self.name}")
        self._keeper.add_done_callback(self._keeper_ended)

    async def stop(self) -> None:
        """Ask the part to end, and kill it if it does not."""
        if self._keeper:
            await cancel_and_wait(self._keeper)
        self.ready.clear()
        self.failed.cancel()
        if self._child and not await self._child.stop(self.recipe.stop_seconds):
            self._hooks.report(f"{self.recipe.title} did not stop by itself and was killed")
        if self._child:
            await self._hooks.cleared(self.name)

    def kill(self) -> None:
        """Send SIGKILL to all its processes, as a crash would; the keeper starts it again."""
        self.ready.clear()
        if self._child:
            self._child.kill()

    def hold_down(self) -> None:
        """Kill the part and keep it down until :meth:`let_up`."""
        self._may_start.clear()
        self.kill()

    def let_up(self) -> None:
        self._may_start.set()

    async def _keep(self, child: Child) -> NoReturn:
        while True:
            status = await child.ended()
            self.ready.clear()
            self.restarts += 1
            self._hooks.report(f"{self.recipe.title} ended ({_status_name(status)}); starting it again")
            await self._clear(child)
            child = await self._until_ready(_RESTART_DEATHS)

    def _keeper_ended(self, keeper: asyncio.Task[NoReturn]) -> None:
        """When the keeper task ends without being cancelled, the part has failed for good."""
        error = None if keeper.cancelled() else keeper.exception()
        if error is None or self.failed.done():
            return
        if not isinstance(error, StackError):
            logging.getLogger(__name__).error("%s is no longer supervised", self.recipe.title, exc_info=error)
            error = StackError(f"{self.recipe.title} cannot be kept running: {error!r}.")
        self.failed.set_exception(error)

    async def _until_ready(self, deaths_allowed: int) -> Child:
        for deaths in range(deaths_allowed):
            await asyncio.sleep(_BACKOFF_SECONDS[min(deaths, len(_BACKOFF_SECONDS) - 1)])
            await self._may_start.wait()
            for need in self._needs:
                await need.ready.wait()
            try:
                child = await self._spawn()
            except OSError as error:
                self._hooks.report(f"{self.recipe.title} could not be started: {error}")
                continue
            if await self._answers_in_time(child):
                self.ready.set()
                return child
            await self._clear(child)
            self._hooks.report(f"{self.recipe.title} did not become ready")
        lines = "\n".join(last_lines(self.log, _LAST_LINES))
        raise StackError(
            f"{self.recipe.title} does not start; {deaths_allowed} attempts failed. Its last lines ({self.log}):\n{lines}"
        )

    async def _spawn(self) -> Child:
        self.recipe.before_start()
        recipe = self.recipe
        child = await Child.start(recipe.argv, recipe.variables, self.log, recipe.withheld)
        self._child = child
        self._hooks.started(self.name, child)
        return child

    async def _answers_in_time(self, child: Child) -> bool:
        """Poll until the part answers and is warm. False when it ended or its time is over."""
        loop = asyncio.get_running_loop()
        began = last_report = loop.time()
        while child.alive and loop.time() - began < self.recipe.start_seconds:
            await self._hooks.polled(self.name)
            if await self._is_well(child) and await self._warm(child):
                self._hooks.report(f"{self.recipe.title} is ready ({loop.time() - began:.0f} s)")
                return True
            if loop.time() - last_report >= _REPORT_SECONDS:
                last_report = loop.time()
                self._hooks.report(f"{self.recipe.title} is starting ({last_report - began:.0f} s)")
            await asyncio.sleep(_POLL_SECONDS)
        return False

    async def _is_well(self, child: Child) -> bool:
        """Whether the part answers and listens itself: until it does, another engine on this machine may have its port."""
        if not await self.recipe.answers():
            return False
        return self.recipe.port is None or proc.listens(child.pids(), self.recipe.port)

    async def _warm(self, child: Child) -> bool:
        if self.recipe.warm_up is None:
            return child.alive
        warming = asyncio.ensure_future(self.recipe.warm_up())
        ending = asyncio.ensure_future(child.ended())
        await asyncio.wait({warming, ending}, return_when=asyncio.FIRST_COMPLETED)
        error = warming.exception() if warming.done() else None
        if error:
            self._hooks.report(str(error))
        warm = warming.done() and error is None and child.alive
        await cancel_and_wait(warming, ending)
        return warm

    async def _clear(self, child: Child) -> None:
        await child.wipe()
        await self._hooks.cleared(self.name)


def _status_name(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return Signals(-status).name
    return f"signal {-status}"
