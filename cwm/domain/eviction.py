"""Eviction policies: which entry makes room first. Each operation takes O(1) or O(log n)."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

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


class Policy(Protocol[K]):
    """Tracks entries and chooses the one to evict. Equals go in the order of their last use."""

    def __len__(self) -> int: ...

    def add(self, key: K, facts: Facts) -> None:
        """Track the entry as used now. A key that is already tracked starts over with the new facts."""

    def touch(self, key: K) -> None:
        """Note a use of a tracked key."""

    def remove(self, key: K) -> None:
        """Stop tracking the key; an unknown key is ignored."""

    def victim(self) -> K | None:
        """The key to evict next. It stays tracked until it is removed."""


class LeastRecentlyUsed(Generic[K]):
    """Every operation takes O(1)."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, key: K, facts: Facts) -> None:  # noqa: ARG002 - goes by use alone
        self._order[key] = None
        self._order.move_to_end(key)

    def touch(self, key: K) -> None:
        self._order.move_to_end(key)

    def remove(self, key: K) -> None:
        self._order.pop(key, None)

    def victim(self) -> K | None:
        return next(iter(self._order), None)


class Ranked(Generic[K]):
    """The entry with the lowest ``rank`` goes first. Every operation takes O(log n).

    A heap that skips outdated items, and is rebuilt when these outnumber the live ones.
    """

    __slots__ = ("_heap", "_live", "_rank", "_tick")

    def __init__(self, rank: Callable[[Facts], float]) -> None:
        self._rank = rank
        self._heap: list[tuple[float, int, K]] = []
        self._live: dict[K, tuple[float, int, Facts]] = {}
        self._tick = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, key: K, facts: Facts) -> None:
        self._push(key, self._rank(facts), facts)

    def touch(self, key: K) -> None:
        rank, _, facts = self._live[key]
        self._push(key, rank, facts)

    def remove(self, key: K) -> None:
        self._live.pop(key, None)
        self._sweep()

    def victim(self) -> K | None:
        while self._heap:
            _, tick, key = self._heap[0]
            live = self._live.get(key)
            if live is not None and live[1] == tick:
                return key
            heapq.heappop(self._heap)
        return None

    def _push(self, key: K, rank: float, facts: Facts) -> None:
        self._tick += 1
        self._live[key] = (rank, self._tick, facts)
        heapq.heappush(self._heap, (rank, self._tick, key))
        self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(rank, tick, key) for key, (rank, tick, _) in self._live.items()]
            heapq.heapify(self._heap)


class LeastFrequentlyUsed(Ranked[K]):
    """Ranked by the number of uses, to which each touch adds one."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda facts: facts.uses)

    def touch(self, key: K) -> None:
        uses, _, facts = self._live[key]
        self._push(key, uses + 1, facts)


def policy_of(eviction: Eviction) -> Policy[K]:
    """A new policy that tracks nothing yet."""
    match eviction:
        case Eviction.LRU:
            return LeastRecentlyUsed()
        case Eviction.LFU:
            return LeastFrequentlyUsed()
        case Eviction.TTL:
            return Ranked(lambda facts: facts.ends_at)
        case Eviction.PRIORITY:
            return Ranked(lambda facts: facts.priority)
        case Eviction.SIZE:
            return Ranked(lambda facts: -facts.size)
