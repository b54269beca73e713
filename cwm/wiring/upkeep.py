"""What runs beside the requests, from the first to the last of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from cwm.adapters.sql import schema
from cwm.adapters.telemetry.event_loop import watch_event_loop
from cwm.domain.errors import CwmError
from cwm.ports.clock import Clock
from cwm.settings import Settings
from cwm.settings.watch import ReloadOutcome, watch
from cwm.wiring.front import hide_secrets
from cwm.wiring.parts import Parts

# Shorter than any vLLM takes to restart, so that a changed engine is always noticed.
_WATCH_SECONDS: Final = 1.0
_CANCEL_AGAIN_SECONDS: Final = 1.0


@dataclass(slots=True)
class Drain:
    """How long running work may still take: ``seconds`` in all, from when the gateway was told to stop."""

    seconds: float
    clock: Clock
    _until: float | None = None

    def begin(self) -> None:
        """The first call counts."""
        if self._until is None:
            self._until = self.clock.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds if self._until is None else max(0.0, self._until - self.clock.monotonic())


@asynccontextmanager
async def kept_up(settings: Settings, parts: Parts, drain: Drain) -> AsyncIterator[None]:
    """Open what must be open and look after it, whichever way clients come in; then let running work finish."""
    await hide_secrets(settings)
    async with parts.close():
        await require_schema(settings, parts)
        await parts.replicas.beat()
        await parts.upstreams.configure(settings.upstreams)
        if settings.upstreams:
            # Nothing else runs while the vocabulary loads: better now than in somebody's first call.
            await asyncio.to_thread(parts.token_counter.load)
        upkeep = [
            asyncio.create_task(parts.directory.watch(_WATCH_SECONDS)),
            asyncio.create_task(parts.reconcile.run(settings.retention.reconcile_seconds)),
            asyncio.create_task(parts.shared.read()),
            asyncio.create_task(parts.agents.sweep()),
            asyncio.create_task(parts.context_upkeep.run()),
            asyncio.create_task(parts.services.results.sweep()),
            asyncio.create_task(parts.watchdog.watch(settings.verification.watchdog_seconds)),
            asyncio.create_task(parts.audit_upkeep.run(settings.audit.audit_checkpoint_seconds)),
            asyncio.create_task(watch_event_loop(parts.meter.event_loop_lag)),
            asyncio.create_task(_reload(settings, parts)),
        ]
        living = [asyncio.create_task(parts.limits.running.keep())]
        try:
            yield
        finally:
            drain.begin()
            # Others would take over what still goes on here, and give its places to more of it.
            living.append(asyncio.create_task(parts.replicas.beat_on()))
            # Each whatever became of those before: a part that failed must not take running work along.
            async with AsyncExitStack() as stopping:
                stopping.push_async_callback(_leave, parts)
                stopping.push_async_callback(_stop, living)
                stopping.push_async_callback(_finish, parts, drain)
                await _stop(upkeep)


async def require_schema(settings: Settings, parts: Parts) -> None:
    """An empty SQLite file is ours to fill; any other unknown schema is refused."""
    if settings.database.database_url is None and await schema.is_empty(parts.database):
        await schema.upgrade(settings.database.url())
    await schema.require_current(parts.database)


async def _reload(settings: Settings, parts: Parts) -> None:
    """Hand on what changes in the file that the settings were read from."""

    async def apply(new: Settings) -> None:
        for reconfigure in parts.reconfigure:
            await reconfigure(new)

    def on_outcome(outcome: ReloadOutcome) -> None:
        parts.meter.event(f"config_reload_{outcome}")

    if settings.reading is not None:
        config, environ = settings.reading.config, settings.reading.environ
        await watch(settings, apply, environ=environ, config=config, on_outcome=on_outcome)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        # The client of Redis can lose a cancellation that comes as it finishes writing.
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled() and (failed := task.exception()) is not None:
            raise failed


async def _leave(parts: Parts) -> None:
    with contextlib.suppress(CwmError):
        await parts.audit_upkeep.checkpoint()
    with contextlib.suppress(CwmError):
        await parts.replicas.leave()


async def _finish(parts: Parts, drain: Drain) -> None:
    await parts.pass_through.drain(drain.left)
    try:
        async with asyncio.timeout(drain.left):
            await parts.services.generate.settle()
            # A quarantine stores its window again: it ends before freezes do.
            await parts.services.thaw.settle()
            await parts.services.freeze.settle()
            await parts.watchdog.settle()
    except TimeoutError:
        structlog.get_logger("cwm").warning("drain_incomplete", seconds=drain.seconds)
