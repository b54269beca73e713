"""Eviction policies: which entry makes room first. Each operation takes O(log n)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

_SLACK: Final = 64

K = TypeVar("K")


class Eviction(StrEnum):
    LRU = "lru"
    """Evicts the entry unused for longest."""
    LFU = "lfu"
    """Evicts the entry used least often; among equals, the one unused for longest."""
    TTL = "ttl"
    """Evicts the entry that expires first; entries that never expire come last."""
    PRIORITY = "priority"
    """Evicts the entry of lowest priority; among equals, the one unused for longest."""
    SIZE = "size"
    """Evicts the largest entry."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy may base its order on.

    ``size`` in bytes; ``ends_at`` in seconds of one clock, infinite for never; ``uses`` counts the current use too.
    """

    size: int = 0
    priority: int = 0
    ends_at: float = math.inf
    uses: int = 1


class Policy(Generic[K]):
    """Tracks entries by ``rank``: the lowest is evicted first; of equals, the one unused for longest.

    Each use adds ``step`` to the rank. A heap that skips outdated items, and is rebuilt when these outnumber the live
    ones.
    """

    __slots__ = ("_heap", "_live", "_rank", "_step", "_tick")

    def __init__(self, rank: Callable[[Facts], float], step: int = 0) -> None:
        self._rank = rank
        self._step = step
        self._heap: list[tuple[float, int, K]] = []
        self._live: dict[K, tuple[float, int]] = {}
        self._tick = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, key: K, facts: Facts) -> None:
        """Track the entry as used now. A key that is already tracked starts over with the new facts."""
        self._push(key, self._rank(facts))

    def touch(self, key: K) -> None:
        """Note a use of a tracked key."""
        self._push(key, self._live[key][0] + self._step)

    def remove(self, key: K) -> None:
        """Stop tracking the key; an unknown key is ignored."""
        self._live.pop(key, None)
        self._sweep()

    def victim(self) -> K | None:
        """The key to evict next. It stays tracked until it is removed."""
        while self._heap:
            rank, tick, key = self._heap[0]
            if self._live.get(key) == (rank, tick):
                return key
            heapq.heappop(self._heap)
        return None

    def _push(self, key: K, rank: float) -> None:
        self._tick += 1
        self._live[key] = (rank, self._tick)
        heapq.heappush(self._heap, (rank, self._tick, key))
        self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(rank, tick, key) for key, (rank, tick) in self._live.items()]
            heapq.heapify(self._heap)


def policy_of(eviction: Eviction) -> Policy[K]:
    """A new policy that tracks nothing yet."""
    match eviction:
        case Eviction.LRU:
            return Policy(lambda _: 0)
        case Eviction.LFU:
            return Policy(lambda facts: facts.uses, step=1)
        case Eviction.TTL:
            return Policy(lambda facts: facts.ends_at)
        case Eviction.PRIORITY:
            return Policy(lambda facts: facts.priority)
        case Eviction.SIZE:
            return Policy(lambda facts: -facts.size)
