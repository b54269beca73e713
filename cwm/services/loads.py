"""What LMCache loaded from below L1, asked so soon after that it may not have counted it yet."""

from __future__ import annotations

import asyncio
from typing import Final

from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier, Loads

_WITHIN_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.02


async def loads_since(before: Loads, cache: KvTier, cache_salt: str, chunks: int, clock: Clock) -> Loads:
    """Loads since ``before``, also those of others, once all ``chunks`` or all events of LMCache are counted.

    Fewer than ``chunks``: L1 had the rest. Raises as ``KvTier.loads``.
    """
    until, counted = clock.monotonic() + _WITHIN_SECONDS, False
    while True:
        since = (await cache.loads(cache_salt)).since(before)
        if counted or since.chunks >= chunks or clock.monotonic() > until:
            return since
        # One answer's queue and totals are not of one moment: an empty queue vouches for the next answer's totals.
        counted = since.uncounted == 0
        await asyncio.sleep(_POLL_SECONDS)
