"""What LMCache loaded from below L1, asked so soon after that it may not have counted it yet."""

from __future__ import annotations

import asyncio
from typing import Final

from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier, Loads

_WITHIN_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02


async def loads_since(
    before: Loads, cache: KvTier, cache_salt: str, found: int, clock: Clock
) -> Loads | None:
    """Loads since ``before`` and a prefetch that ``found`` so many chunks; None where LMCache does not tell.

    Then it was too late in counting, or started anew. Also loads of others. Fewer chunks than found: L1 had the
    rest. Raises as ``KvTier.loads``.
    """
    until, counted = clock.monotonic() + _WITHIN_SECONDS, False
    while clock.monotonic() < until:
        since = (await cache.loads(cache_salt)).since(before)
        if since.chunks < 0 or since.reads < 0:
            return None
        if since.at_once or counted or (since.chunks >= found and sum(since.by_tier.values()) > 0):
            return since
        # The totals of one answer are not of one moment: what it says to be counted is in the next.
        counted = since.reads >= found
        await asyncio.sleep(_POLL_SECONDS)
    return None
