"""Storage of the ``limits`` library in Redis that admits a request by all of its limits in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from limits.aio.storage import RedisStorage

from cwm.adapters.redis.limits.trips import Script, Trips

# First the places, which are full or not; then the rates, which count; then the places are taken.
_ADMIT: Final = """
local function acquire(KEYS, ARGV)
%s
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local places = tonumber(ARGV[3])
for at = 1, places do
  redis.call('ZREMRANGEBYSCORE', KEYS[at], '-inf', now)
  if redis.call('ZCARD', KEYS[at]) >= tonumber(ARGV[3 + at]) then return at end
end
for at = 1, (#KEYS - places) / 2 do
  local key, arg = places + 2 * at - 1, places + 2 * at + 2
  if not acquire({KEYS[key], KEYS[key + 1]}, {ARGV[arg], ARGV[arg + 1], 1}) then return places + at end
end
for at = 1, places do
  redis.call('ZADD', KEYS[at], now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[at], ARGV[2])
end
return 0
"""


class LimitStorage(RedisStorage):
    """Whether a rate has room, and what is counted, says the library's own script, run for each in turn."""

    def __init__(self, trips: Trips, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        bridge: Any = self.bridge
        self._trips = trips
        self._admit = Script(_ADMIT % bridge.SCRIPT_ACQUIRE_SLIDING_WINDOW.decode())

    async def acquire_in_order(self, entries: Sequence[tuple[str, int, int]]) -> int | None:
        """Count one for each key, limit and seconds, up to the first without room: which that is, or None."""
        return await self.admit("", 0, (), entries)

    async def admit(
        self,
        request: str,
        lapse_ms: int,
        places: Sequence[tuple[str, int]],
        entries: Sequence[tuple[str, int, int]],
    ) -> int | None:
        """Take a place at each key of ``places`` and count ``entries``; the first of both without room, or None.

        Without a place nothing is counted, and what has no room takes no place.
        """
        keys, args = [key for key, _ in places], [most for _, most in places]
        for key, limit, seconds in entries:
            windows = self._previous_window_key(key), self._current_window_key(key)
            keys.extend(map(self.bridge.prefixed_key, windows))
            args += limit, seconds
        full = int(await self._trips.run(self._admit, keys, [request, lapse_ms, len(places), *args]))
        return full - 1 if full else None
