"""A storage of the ``limits`` library for one process, with a bounded number of keys.

The library's own in-process storage keeps expired keys until it scans all keys, which it does at every request.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from limits.aio.storage import SlidingWindowCounterSupport, Storage


@dataclass(slots=True)
class _Window:
    """Requests since ``began_at`` (``count``), and in the previous window (``before``)."""

    began_at: float
    count: int = 0
    before: int = 0


class InProcessStorage(Storage, SlidingWindowCounterSupport):
    """Holds at most ``most`` keys: a new key evicts the one that was counted least recently."""

    STORAGE_SCHEME = None

    def __init__(self, most: int = 100_000, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._most = most
        self._now = now
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._counters: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows) + len(self._counters)

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        now = self._now()
        window = self._rolled(key, expiry, now)
        if window is None:
            window = _Window(now)
        weight = 1 - (now - window.began_at) / expiry
        if int(window.before * weight) + window.count + amount > limit:
            return False
        window.count += amount
        _put(self._windows, key, window, self._most)
        return True

    async def acquire_in_order(self, entries: Sequence[tuple[str, int, int, int]]) -> int | None:
        """Count a request for each (key, limit, seconds, cost) in order; stop at the first that is full, and return its index."""
        for index, (key, limit, expiry, cost) in enumerate(entries):
            if not await self.acquire_sliding_window_entry(key, limit, expiry, cost):
                return index
        return None

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        now = self._now()
        window = self._rolled(key, expiry, now)
        if window is None:
            return 0, 0.0, 0, 0.0
        remaining = window.began_at + expiry - now
        return window.before, remaining, window.count, remaining + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        del expiry
        self._windows.pop(key, None)

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        count, ends_at = self._counter(key) or (0, self._now() + expiry)
        _put(self._counters, key, (count + amount, ends_at), self._most)
        return count + amount

    async def get(self, key: str) -> int:
        counter = self._counter(key)
        return 0 if counter is None else counter[0]

    async def get_expiry(self, key: str) -> float:
        counter = self._counter(key)
        return self._now() if counter is None else counter[1]

    async def check(self) -> bool:
        return True

    async def reset(self) -> int | None:
        count = len(self)
        self._windows.clear()
        self._counters.clear()
        return count

    async def clear(self, key: str) -> None:
        self._counters.pop(key, None)

    def _rolled(self, key: str, expiry: int, now: float) -> _Window | None:
        """The window at ``now``; None if all its requests are too old to count."""
        window = self._windows.get(key)
        if window is None:
            return None
        periods = int((now - window.began_at) // expiry)
        # A negative value means that the clock was set back.
        if periods < 0 or periods > 1:
            del self._windows[key]
            return None
        if periods == 1:
            window.began_at, window.before, window.count = window.began_at + expiry, window.count, 0
        return window

    def _counter(self, key: str) -> tuple[int, float] | None:
        counter = self._counters.get(key)
        if counter is not None and counter[1] <= self._now():
            del self._counters[key]
            return None
        return counter


def _put(entries: OrderedDict[str, Any], key: str, value: Any, most: int) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > most:
        entries.popitem(last=False)
