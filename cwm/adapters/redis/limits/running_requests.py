"""Running requests of several gateways: one sorted set per limit, with the requests by expiry.

A gateway renews its own requests while they run; those of a gateway that died expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from cwm.adapters.limits.counts import LimitsRequestCounts, entry
from cwm.adapters.redis import connection
from cwm.adapters.redis.keys import digest_key
from cwm.adapters.redis.limits.trips import Script, Trips
from cwm.domain.errors import StorageWriteError
from cwm.domain.limits import Bucket, ConcurrencyLimit

_LAPSE_SECONDS: Final = 60
_RENEW_SECONDS: Final = 15

_RENEW: Final = Script(
    """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for at, key in ipairs(KEYS) do
  redis.call('ZADD', key, 'XX', now + ARGV[1], ARGV[at + 1])
  redis.call('PEXPIRE', key, ARGV[1])
end
"""
)
_COUNT: Final = Script(
    """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZCOUNT', KEYS[1], '(' .. now, '+inf')
"""
)
_writing: Final = partial(connection.writing, "The store of running requests")


class RedisRunningRequests:
    """``counts`` belong to the same store: one script handles the places and the rates of a request."""

    def __init__(
        self, trips: Trips, counts: LimitsRequestCounts, lapse_seconds: float = _LAPSE_SECONDS
    ) -> None:
        self._trips = trips
        self._counts = counts
        self._lapse_ms = round(lapse_seconds * 1000)
        self._running: dict[str, Sequence[ConcurrencyLimit]] = {}

    async def begin(
        self, request: str, places: Sequence[ConcurrencyLimit], buckets: Sequence[Bucket] = ()
    ) -> ConcurrencyLimit | tuple[Bucket, float] | None:
        pools = [(_key(place), place.most, place.cost) for place in places]
        rates = [entry(bucket) for bucket in buckets]
        async with _writing():
            full: int | None = await self._counts.storage.admit(request, self._lapse_ms, pools, rates)
            if full is not None and full >= len(places):
                return await self._counts.full(buckets[full - len(places)])
        if full is not None:
            return places[full]
        self._running[request] = places
        return None

    async def end(self, request: str, places: Sequence[ConcurrencyLimit]) -> None:
        self._running.pop(request, None)
        async with _writing():
            await self._trips.tell([("ZREM", _key(place), *_members(request, place)) for place in places])

    async def count(self, place: ConcurrencyLimit) -> int:
        async with _writing():
            return int(await self._trips.run(_COUNT, [_key(place)], []))

    async def keep(self) -> None:
        """Renew this gateway's requests until cancelled, four times per lifetime."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with suppress(StorageWriteError):
                await self.renew()

    async def renew(self) -> None:
        members = [
            (_key(place), member)
            for request, places in self._running.items()
            for place in places
            for member in _members(request, place)
        ]
        if members:
            keys, requests = zip(*members, strict=True)
            async with _writing():
                await self._trips.run(_RENEW, keys, [self._lapse_ms, *requests])


def _members(request: str, place: ConcurrencyLimit) -> list[str]:
    """One member of the set for each place that the request occupies."""
    return [request, *(f"{request}:{more}" for more in range(2, place.cost + 1))]


def _key(place: ConcurrencyLimit) -> str:
    return digest_key("running", place.key)
