"""A Redis storage of the ``limits`` library that counts a request against several limits in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from limits.aio.storage import RedisStorage

_IN_ORDER: Final = """
local function acquire(KEYS, ARGV)
%s
end
for at = 1, #KEYS / 2 do
  if not acquire({KEYS[2 * at - 1], KEYS[2 * at]}, {ARGV[2 * at - 1], ARGV[2 * at], 1}) then return at end
end
return 0
"""


class LimitStorage(RedisStorage):
    """Runs the library's own script for one limit in turn for each limit; that script decides and counts."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        bridge: Any = self.bridge
        acquire = bridge.SCRIPT_ACQUIRE_SLIDING_WINDOW.decode()
        self._in_order = bridge.get_connection().register_script(_IN_ORDER % acquire)

    async def acquire_in_order(self, entries: Sequence[tuple[str, int, int]]) -> int | None:
        """Count one request for each (key, limit, seconds) in order; stop at the first that is full, and return its index."""
        keys: list[str] = []
        for key, _, _ in entries:
            windows = self._previous_window_key(key), self._current_window_key(key)
            keys.extend(map(self.bridge.prefixed_key, windows))
        bounds = [bound for _, *both in entries for bound in both]
        full = int(await self._in_order(keys, bounds))
        return full - 1 if full else None
