"""A Redis storage of the ``limits`` library that counts a request against several limits in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from limits.aio.storage import RedisStorage

from cwm.adapters.redis.limits.trips import Script, Trips

# A full place ends it before anything is counted; a full rate ends it before a place is occupied.
_ADMIT: Final = """
local function acquire(KEYS, ARGV)
%s
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local places = tonumber(ARGV[3])
for at = 1, places do
  redis.call('ZREMRANGEBYSCORE', KEYS[at], '-inf', now)
  local most, cost = tonumber(ARGV[2 + 2 * at]), tonumber(ARGV[3 + 2 * at])
  if redis.call('ZCARD', KEYS[at]) + cost > most then return at end
end
for at = 1, (#KEYS - places) / 2 do
  local key, arg = places + 2 * at - 1, 2 * places + 3 * at + 1
  local rate = {ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]}
  if not acquire({KEYS[key], KEYS[key + 1]}, rate) then return places + at end
end
for at = 1, places do
  redis.call('ZADD', KEYS[at], now + ARGV[2], ARGV[1])
  for more = 2, tonumber(ARGV[3 + 2 * at]) do
    redis.call('ZADD', KEYS[at], now + ARGV[2], ARGV[1] .. ':' .. more)
  end
  redis.call('PEXPIRE', KEYS[at], ARGV[2])
end
return 0
"""


class LimitStorage(RedisStorage):
    """Runs the library's own script for one limit in turn for each limit; that script decides and counts."""

    def __init__(self, trips: Trips, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        bridge: Any = self.bridge
        self._trips = trips
        self._admit = Script(_ADMIT % bridge.SCRIPT_ACQUIRE_SLIDING_WINDOW.decode())

    async def acquire_in_order(self, entries: Sequence[tuple[str, int, int, int]]) -> int | None:
        """Count a request for each (key, limit, seconds, cost) in order; stop at the first that is full, and return its index."""
        return await self.admit("", 0, (), entries)

    async def admit(
        self,
        request: str,
        lapse_ms: int,
        places: Sequence[tuple[str, int, int]],
        entries: Sequence[tuple[str, int, int, int]],
    ) -> int | None:
        """Occupy ``places`` (key, most, cost) and count ``entries`` (key, limit, seconds, cost).

        Returns the index of the first that is full, places before entries, or None.
        """
        keys = [key for key, _, _ in places]
        args = [number for _, most, cost in places for number in (most, cost)]
        for key, *rate in entries:
            windows = self._previous_window_key(key), self._current_window_key(key)
            keys.extend(map(self.bridge.prefixed_key, windows))
            args += rate
        full = int(await self._trips.run(self._admit, keys, [request, lapse_ms, len(places), *args]))
        return full - 1 if full else None
