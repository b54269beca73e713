"""The port ``RequestCounts`` with the ``limits`` library, over one of its storages.

The library is imported when the first request is counted, so a gateway without limits never loads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from cwm.domain.limits import Bucket, Rate, Use

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.aio.strategies import FixedWindowRateLimiter

# Added to each wait: the library rounds to milliseconds, so a request at the exact moment may still be refused.
_EDGE_SECONDS: Final = 0.002


@dataclass
class LimitsRequestCounts:
    """``make_storage`` creates the library's storage, extended by ``acquire_in_order``; ``guard`` maps its failures to CWM-4001."""

    make_storage: Callable[[], Any]
    guard: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    now: Callable[[], float] = time.time

    async def count(self, *buckets: Bucket) -> tuple[Bucket, float] | None:
        async with self.guard():
            full = await self.storage.acquire_in_order([entry(bucket) for bucket in buckets])
            return None if full is None else await self.full(buckets[full])

    async def full(self, bucket: Bucket) -> tuple[Bucket, float]:
        """A bucket that has no room, and the seconds until there is some."""
        key, _, seconds, _ = entry(bucket)
        window = await self.storage.get_sliding_window(key, seconds)
        return bucket, seconds_to_wait(bucket.rate, *window, cost=bucket.cost)

    async def used_up(self, bucket: Bucket) -> float | None:
        item, fixed = _item(bucket.rate), self._fixed
        async with self.guard():
            if await fixed.test(item, bucket.key):
                return None
            ends_at, _ = await fixed.get_window_stats(item, bucket.key)
        return max(0.0, ends_at - self.now())

    async def spend(self, bucket: Bucket, tokens: int) -> None:
        async with self.guard():
            await self._fixed.hit(_item(bucket.rate), bucket.key, cost=tokens)

    async def requests_in(self, bucket: Bucket) -> Use:
        key, most, seconds, _ = entry(bucket)
        async with self.guard():
            before, before_ends_in, now, now_ends_in = await self.storage.get_sliding_window(key, seconds)
        used = int(before * before_ends_in / seconds) + now
        if used < most:
            return Use(used)
        return Use(used, seconds_to_wait(bucket.rate, before, before_ends_in, now, now_ends_in))

    async def tokens_in(self, bucket: Bucket) -> Use:
        key = entry(bucket)[0]
        async with self.guard():
            used = await self.storage.get(key)
            ends_at = await self.storage.get_expiry(key) if used else self.now()
        return Use(used, max(0.0, ends_at - self.now()))

    @cached_property
    def storage(self) -> Any:
        return self.make_storage()

    @cached_property
    def _fixed(self) -> FixedWindowRateLimiter:
        from limits.aio.strategies import FixedWindowRateLimiter

        return FixedWindowRateLimiter(self.storage)


def seconds_to_wait(
    rate: Rate, before: int, before_ends_in: float, now: int, now_ends_in: float, *, cost: int = 1
) -> float:
    """Seconds until ``cost`` more requests fit.

    ``before`` is the number of requests in the previous window; their weight falls to 0 by the end of this window.
    The library keeps a window for two periods: one as the current window, one as the previous window.
    """
    room = rate.amount - now - cost + 1
    if room <= 0:
        return max(0.0, now_ends_in - rate.seconds) + _EDGE_SECONDS
    if not before:
        return 0.0
    return max(0.0, before_ends_in - room * rate.seconds / before) + _EDGE_SECONDS


def entry(bucket: Bucket) -> tuple[str, int, int, int]:
    """The library's key, limit and seconds, and the cost."""
    item = _item(bucket.rate)
    return item.key_for(bucket.key), item.amount, item.get_expiry(), bucket.cost


@lru_cache(maxsize=256)
def _item(rate: Rate) -> RateLimitItem:
    from limits import RateLimitItemPerSecond

    return RateLimitItemPerSecond(rate.amount, rate.seconds)
