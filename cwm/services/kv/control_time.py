"""The time of an engine that controls may take, and who is next."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from cwm.ports.clock import Clock

_SHARE: Final = 0.25
_AT_ONCE_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 120.0
_REMEMBERED: Final = 64


@dataclass(eq=False, slots=True)
class _Waiting:
    tenant: str
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class _Engine:
    """``spent``: seconds of controls at ``since``, less the share of the time that has passed."""

    is_busy: bool = False
    spent: float = 0.0
    since: float = 0.0
    waiting: list[_Waiting] = field(default_factory=list)
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    alarm: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class ControlTime:
    """One control at a time on each engine, for at most ``share`` of its time once ``at_once`` seconds are used up.

    Of those who wait, the tenant that had the fewest of the latest controls is next.
    """

    clock: Clock
    share: float = _SHARE
    at_once: float = _AT_ONCE_SECONDS
    patience: float = _PATIENCE_SECONDS
    _engines: defaultdict[str, _Engine] = field(default_factory=lambda: defaultdict(_Engine))

    @asynccontextmanager
    async def taken(self, name: str, tenant: str) -> AsyncIterator[bool]:
        """The engine's time for a control as long as the block lasts; False when there was none for ``patience`` seconds."""
        engine, mine = self._engines[name], _Waiting(tenant)
        engine.waiting.append(mine)
        self._admit(engine)
        seconds = 0.0
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.patience):
                    await mine.admitted.wait()
            started = self.clock.monotonic()
            try:
                yield mine.admitted.is_set()
            finally:
                seconds = self.clock.monotonic() - started
        finally:
            if mine.admitted.is_set():
                self._spend(engine, tenant, seconds)
            else:
                engine.waiting.remove(mine)

    def _admit(self, engine: _Engine) -> None:
        if engine.alarm is not None:
            engine.alarm.cancel()
            engine.alarm = None
        if engine.is_busy or not engine.waiting:
            return
        over = self._spent(engine) - self.at_once
        if over > 0:
            engine.alarm = asyncio.get_running_loop().call_later(over / self.share, self._admit, engine)
            return
        candidate = min(engine.waiting, key=lambda each: engine.latest.count(each.tenant))
        engine.waiting.remove(candidate)
        engine.is_busy = True
        candidate.admitted.set()

    def _spend(self, engine: _Engine, tenant: str, seconds: float) -> None:
        engine.spent = self._spent(engine) + seconds
        engine.latest.append(tenant)
        engine.is_busy = False
        self._admit(engine)

    def _spent(self, engine: _Engine) -> float:
        now = self.clock.monotonic()
        engine.spent = max(0.0, engine.spent - self.share * (now - engine.since))
        engine.since = now
        return engine.spent
