"""Sums what turns cost by tenant and hour, for all gateways together, without a write in any turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cwm.domain.errors import CwmError
from cwm.domain.principal import Principal
from cwm.domain.turn_sums import KEPT, TurnSum, hour_of
from cwm.ports.clock import Clock
from cwm.ports.turn_sums import TurnSumRecords

EVERY_SECONDS: Final = 10.0


@dataclass(slots=True)
class TurnSums:
    """Counts here, and adds what was counted to the records every ten seconds: a gateway that is killed loses that much."""

    records: TurnSumRecords
    clock: Clock
    _sums: dict[tuple[str, datetime], TurnSum] = field(default_factory=dict, init=False)

    def add(self, tenant: str, sum_: TurnSum) -> None:
        self._add({(tenant, hour_of(self.clock.now())): sum_})

    async def of(self, principal: Principal, since: datetime) -> dict[datetime, TurnSum]:
        """By hour, of all gateways and with what this one has not written yet. CWM-4002."""
        own_sums = {hour: each for (tenant, hour), each in self._sums.items() if tenant == principal.tenant}
        sums = dict(await self.records.turn_sums(principal.tenant, since))
        for hour, each in own_sums.items():
            if hour >= since:
                sums[hour] = sums.get(hour, TurnSum()) + each
        return sums

    async def write(self) -> None:
        """Add what was counted to the records; it stays here when that fails. CWM-4001."""
        own_sums, self._sums = self._sums, {}
        if not own_sums:
            return
        try:
            await self.records.add_turn_sums_of_every_tenant(own_sums, hour_of(self.clock.now()) - KEPT)
        except CwmError:
            self._add(own_sums)
            raise

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            with suppress(CwmError):
                await self.write()

    async def settle(self) -> None:
        """Write what is left, at the end."""
        with suppress(CwmError):
            await self.write()

    def _add(self, sums: Mapping[tuple[str, datetime], TurnSum]) -> None:
        for key, each in sums.items():
            self._sums[key] = self._sums.get(key, TurnSum()) + each
