"""Requests that run in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cwm.domain.limits import Bucket, ConcurrencyLimit
from cwm.ports.limits import RequestCounts


@dataclass(slots=True)
class InProcessRunningRequests:
    counts: RequestCounts
    _running: Counter[str] = field(default_factory=Counter)
    _requests: set[str] = field(default_factory=set)

    async def begin(
        self, request: str, places: Sequence[ConcurrencyLimit], buckets: Sequence[Bucket] = ()
    ) -> ConcurrencyLimit | tuple[Bucket, float] | None:
        full = next((each for each in places if self._running[each.key] + each.cost > each.most), None)
        if full is not None:
            return full
        self._requests.add(request)
        self._running.update({place.key: place.cost for place in places})
        over = await self.counts.count(*buckets)
        if over is not None:
            await self.end(request, places)
        return over

    async def end(self, request: str, places: Sequence[ConcurrencyLimit]) -> None:
        if request not in self._requests:
            return
        self._requests.remove(request)
        for place in places:
            self._running[place.key] -= place.cost
            if not self._running[place.key]:
                del self._running[place.key]

    async def count(self, place: ConcurrencyLimit) -> int:
        return self._running[place.key]

    async def keep(self) -> None:
        """Waits for ever: requests of this process need no renewal, because they end with it."""
        await asyncio.Event().wait()
