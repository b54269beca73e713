"""Background tasks of a gateway, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql import schema
from cwm.adapters.telemetry.event_loop import watch_event_loop
from cwm.adapters.telemetry.redaction import HIDDEN
from cwm.domain.audit import AuditEvent
from cwm.domain.errors import CwmError
from cwm.ports.clock import Clock
from cwm.settings import Settings
from cwm.settings.changes import SettingChange
from cwm.settings.watch import ReloadOutcome, watch
from cwm.wiring.front import hide_secrets
from cwm.wiring.parts import Parts

# Shorter than the restart of any vLLM, so that a changed engine is always detected.
_WATCH_SECONDS: Final = 1.0
_SWITCH_SECONDS: Final = 0.001
_HEALTH_SECONDS: Final = 5.0
_LOOK_UP_SECONDS: Final = 3.0
_CANCEL_AGAIN_SECONDS: Final = 1.0


@dataclass(slots=True)
class Drain:
    """The time that running work has left: ``seconds`` from the signal to stop."""

    seconds: float
    clock: Clock
    _until: float | None = None

    def begin(self) -> None:
        """Start the clock. Later calls have no effect."""
        if self._until is None:
            self._until = self.clock.monotonic() + self.seconds

    @property
    def seconds_left(self) -> float:
        return self.seconds if self._until is None else max(0.0, self._until - self.clock.monotonic())


@asynccontextmanager
async def running(settings: Settings, parts: Parts, drain: Drain) -> AsyncIterator[None]:
    """Open the parts and run the background tasks, for every face; on exit let running work finish."""
    hide_secrets(settings)
    # A thread that reads JSON lets the event loop go on after a millisecond, not after five.
    sys.setswitchinterval(_SWITCH_SECONDS)
    async with parts.close():
        await require_schema(settings, parts)
        await parts.base.replicas.beat()
        await parts.agent_side.upstreams.configure(settings.upstreams)
        if settings.upstreams:
            # Loading the vocabulary blocks everything else, so it happens before the first call.
            await asyncio.to_thread(parts.agent_side.token_counter.load)
        await parts.engine_side.engine_list.look()
        upkeep = [
            asyncio.create_task(parts.engine_side.engine_list.watch(_LOOK_UP_SECONDS)),
            asyncio.create_task(parts.engine_side.directory.watch(_WATCH_SECONDS, parts.base.clock)),
            asyncio.create_task(parts.services.inspect.watch(_HEALTH_SECONDS)),
            asyncio.create_task(parts.upkeep.reconcile.run(settings.retention.reconcile_seconds)),
            asyncio.create_task(parts.engine_side.turn_sums.run()),
            asyncio.create_task(parts.base.shared.read()),
            asyncio.create_task(parts.agent_side.agents.sweep()),
            asyncio.create_task(parts.agent_side.context_upkeep.run()),
            asyncio.create_task(parts.services.results.sweep()),
            asyncio.create_task(parts.services.upstream_tasks.sweep()),
            asyncio.create_task(parts.upkeep.watchdog.watch(settings.verification.watchdog_seconds)),
            asyncio.create_task(parts.base.audit_upkeep.run(settings.audit.audit_checkpoint_seconds)),
            asyncio.create_task(watch_event_loop(parts.base.meter.event_loop_lag)),
            asyncio.create_task(_reload(settings, parts)),
        ]
        living = [asyncio.create_task(parts.base.limits.running.keep())]
        try:
            yield
        finally:
            drain.begin()
            # Without a heartbeat other gateways would take over the work that still runs here, and reuse its places.
            living.append(asyncio.create_task(parts.base.replicas.beat_on()))
            # Each step runs even if an earlier one failed, so that a failed part does not abort running work.
            async with AsyncExitStack() as stopping:
                stopping.push_async_callback(_leave, parts)
                stopping.push_async_callback(_stop, living)
                stopping.push_async_callback(_finish, parts, drain)
                await _stop(upkeep)


async def require_schema(settings: Settings, parts: Parts) -> None:
    """Create the schema in an empty SQLite file; refuse any other unknown schema."""
    if settings.database.database_url is None and await schema.is_empty(parts.base.database):
        await schema.upgrade(settings.database.url())
    await schema.require_current(parts.base.database)


async def _reload(settings: Settings, parts: Parts) -> None:
    """Apply changes of the configuration file that the settings were read from."""

    async def on_outcome(outcome: ReloadOutcome, changes: Sequence[SettingChange]) -> None:
        parts.base.meter.event(f"config_reload_{outcome}")
        if changes:
            # The log masks what looks like a secret; the audit log has the same text.
            details = {
                change.name: {"before": HIDDEN.text(change.before), "after": HIDDEN.text(change.after)}
                for change in changes
            }
            tenant, at = settings.isolation.tenant, SystemClock().now()
            with contextlib.suppress(CwmError):
                await parts.base.audit.record(
                    AuditEvent(at, tenant, "operator", "settings.change", outcome.value, details=details)
                )

    if settings.reading is not None:
        config, environ = settings.reading.config, settings.reading.environ
        await watch(settings, parts.reconfigure, environ=environ, config=config, on_outcome=on_outcome)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        # The Redis client can lose a cancellation that arrives while it finishes a write.
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled() and (failed := task.exception()) is not None:
            raise failed


async def _leave(parts: Parts) -> None:
    with contextlib.suppress(CwmError):
        await parts.base.audit_upkeep.checkpoint()
    with contextlib.suppress(CwmError):
        await parts.base.replicas.leave()


async def _finish(parts: Parts, drain: Drain) -> None:
    await parts.engine_side.pass_through.drain(drain.seconds_left)
    try:
        async with asyncio.timeout(drain.seconds_left):
            await parts.services.generate.settle()
            # A quarantine freezes its window again, so it is settled before the freezes.
            await parts.services.thaw.settle()
            await parts.services.freeze.settle()
            await parts.services.move.settle()
            await parts.upkeep.reconcile.renewal.settle()
            await parts.upkeep.watchdog.settle()
    except TimeoutError:
        structlog.get_logger("cwm").warning("drain_incomplete", seconds=drain.seconds)
