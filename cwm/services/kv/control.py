"""Control: compute a context afresh, and look at it beside the restored one, before anything is said against the restored one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from cwm.background import BackgroundTasks
from cwm.domain.canary import Canary
from cwm.domain.errors import CwmError
from cwm.domain.look import Look
from cwm.domain.verdict import Evidence, Verification, judge
from cwm.ports.engine import Engine
from cwm.ports.meter import Meter
from cwm.services.aside import outlasting
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.control_time import ControlTime
from cwm.services.kv.noises import Noises, computed
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.verify import Comparison, Verify

# The engine's own cache holds the restored context, the computed one, and what others ask for meanwhile.
_SHARE_OF_ROOM: Final = 0.8
_NO_ROOM: Final = "the engine's cache has no room for the context and its control"
_NO_TIME: Final = "the engine's time for controls is used up by others"
_EVICTED: Final = "the engine evicted the context while it was compared"


@dataclass(frozen=True, slots=True)
class Control:
    """One at a time for each engine, within a share of its time; others wait."""

    engine: Engine
    directory: EngineDirectory
    verify: Verify
    noises: Noises
    meter: Meter
    time: ControlTime
    _running: BackgroundTasks = field(default_factory=BackgroundTasks)

    async def __call__(self, tenant: str, prefix: Prefix, canary: Canary, comparison: Comparison) -> Evidence:
        """The verdict on KV that differs from its canary by more than noise. A caller that disconnects does not stop it."""
        return await outlasting(self._running.start(self._judged(tenant, prefix, canary, comparison)))

    async def settle(self) -> None:
        """Wait for controls whose callers have disconnected."""
        await self._running.settled()

    async def _judged(self, tenant: str, prefix: Prefix, canary: Canary, comparison: Comparison) -> Evidence:
        undecided = replace(comparison.evidence, verification=Verification.UNDECIDED)
        async with self.time.taken(prefix.identity.engine, tenant) as is_ours:
            if not is_ours:
                return replace(undecided, reason=_NO_TIME)
            if not await self._has_room(prefix):
                return replace(undecided, reason=_NO_ROOM)
            self.meter.event("control")
            fresh = replace(prefix, cache_salt=self.directory.clean_room(tenant, prefix.identity))
            await computed(self.engine.complete, fresh)
            places = self.verify.places(prefix)
            looks = await self._in_turns(prefix, fresh, places)
        if looks is None:
            return replace(undecided, reason=_EVICTED)
        restored, other = looks
        noise = await self.noises.measured(prefix.identity)
        if noise.is_too_large:
            return replace(undecided, reason="looks at the same KV differ by more than a nat on this engine")
        return judge(canary, comparison.looks, restored, other, noise.limits)

    async def _in_turns(
        self, restored: Prefix, fresh: Prefix, places: tuple[int, ...]
    ) -> tuple[tuple[Look, Look], tuple[Look, Look]] | None:
        """Looks at restored, fresh, fresh, restored KV, those of a pair at the same time: the same company for both."""
        look = self.verify.look
        first = await asyncio.gather(look(restored, places), look(fresh, places))
        second = await asyncio.gather(look(fresh, places), look(restored, places))
        (restored_1, fresh_1), (fresh_2, restored_2) = first, second
        if restored_1 is None or restored_2 is None or fresh_1 is None or fresh_2 is None:
            return None
        return (restored_1, restored_2), (fresh_1, fresh_2)

    async def _has_room(self, prefix: Prefix) -> bool:
        try:
            room = await self.engine.on(prefix.identity.engine).kv_room()
        except CwmError:
            room = None
        return room is None or 2 * len(prefix.token_ids) <= _SHARE_OF_ROOM * room
