"""The examination of ``cwm doctor``, on request of whoever runs the gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.errors import CwmError, EngineTimeoutError
from cwm.domain.operators import Operators
from cwm.domain.principal import Principal
from cwm.ports.clock import Clock
from cwm.services.health.doctor import Doctor
from cwm.services.health.findings import Finding

_FRESH: Final = timedelta(seconds=15)
_TOLD: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Examination:
    at: datetime
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class Examine:
    """One at a time, since it sends probes to the engine; who asks within 15 seconds gets the last one."""

    doctor: Doctor
    clock: Clock
    operators: Operators
    most_seconds: float = 60.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: Examination | None = None

    async def __call__(self, principal: Principal) -> Examination:
        """CWM-9002 for who does not run the gateway; CWM-6001 if it takes longer than a minute."""
        self.operators.require(principal)
        async with self._lock:
            if self._last is None or self.clock.now() - self._last.at > _FRESH:
                self._last = await self._examined()
            return self._last

    def last(self, principal: Principal) -> Examination | None:
        """The last one of this gateway, if it is at most 15 minutes old. CWM-9002 for who does not run the gateway."""
        self.operators.require(principal)
        if self._last is None or self.clock.now() - self._last.at > _TOLD:
            return None
        return self._last

    async def _examined(self) -> Examination:
        try:
            async with asyncio.timeout(self.most_seconds):
                report = await self.doctor()
        except TimeoutError as error:
            raise _too_long(self.most_seconds) from error
        return Examination(self.clock.now(), report.findings)


def _too_long(seconds: float) -> CwmError:
    return EngineTimeoutError(f"The examination took longer than {seconds:g} s.")
