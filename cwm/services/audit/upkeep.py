"""Upkeep of the audit log: writes checkpoints and prunes old records."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from cwm.domain.audit_chain import ChainKeys, Checkpoint, Place
from cwm.domain.errors import CwmError
from cwm.ports.audit import AuditTrail, ChainEnds
from cwm.ports.clock import Clock

_AT_ONCE: Final = 2_000

_log = logging.getLogger("cwm.audit")


@dataclass(slots=True)
class AuditUpkeep:
    """Writes checkpoints and prunes. ``keep_for`` None keeps records for ever.

    Checkpoints go into the database and into the gateway's log: who can change one often cannot change the other.
    """

    ends: ChainEnds
    trail: AuditTrail
    keys: ChainKeys
    clock: Clock
    keep_for: timedelta | None = None
    _last_places: dict[str, Place] = field(default_factory=dict, init=False)

    async def run(self, every_seconds: float) -> None:
        """Write checkpoints and prune at each interval, until cancelled. If the database is down, try again at the next one."""
        while True:
            await asyncio.sleep(every_seconds)
            try:
                await self.checkpoint()
                await self.prune()
            except CwmError as error:
                _log.warning("upkeep of the audit log failed: %s", error.message)

    async def checkpoint(self) -> None:
        """Examine every chain that this process has extended since the last time, and write a checkpoint of it."""
        for tenant, place in self.ends.ends().items():
            if self._last_places.get(tenant) == place:
                continue
            await self.ends.examine(tenant)
            checkpoint = self.keys.sign(Checkpoint(tenant, place, self.clock.now()))
            if await self.trail.keep_checkpoint(checkpoint):
                _log.info("audit_checkpoint %s:%d:%s", tenant, place.seq, place.digest)
            self._last_places[tenant] = place

    async def prune(self) -> int:
        """Delete records older than ``keep_for``; returns how many."""
        if self.keep_for is None:
            return 0
        cutoff, pruned = self.clock.now() - self.keep_for, 0
        for tenant in await self.trail.tenants():
            while count := await self.trail.prune(tenant, cutoff, _AT_ONCE):
                pruned += count
        return pruned
