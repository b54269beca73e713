"""What makes room first: one order a policy, each in O(1) or O(log n)."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

_SLACK: Final = 64

K = TypeVar("K")


class Eviction(StrEnum):
    LRU = "lru"
    """What was not used for longest."""
    LFU = "lfu"
    """What was used least often; of equals, what was not used for longest."""
    TTL = "ttl"
    """What ends first; what never ends comes last."""
    PRIORITY = "priority"
    """What has the lowest priority; of equals, what was not used for longest."""
    SIZE = "size"
    """What is largest."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a policy may go by. ``size`` in bytes, ``ends_at`` in seconds of one clock, infinite for never."""

    size: int = 0
    priority: int = 0
    ends_at: float = math.inf


class Policy(Protocol[K]):
    """Knows what is kept, and which of it goes first. Equals go in the order of their last use."""

    def __len__(self) -> int: ...

    def add(self, key: K, facts: Facts) -> None:
        """Used now; a key that is known is taken anew."""

    def touch(self, key: K) -> None:
        """A known key is used."""

    def remove(self, key: K) -> None:
        """Forget it; an unknown key is nothing to forget."""

    def victim(self) -> K | None:
        """Who goes next. Stays until it is removed."""


class LeastRecentlyUsed(Generic[K]):
    """O(1) each."""

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


@dataclass(eq=False, slots=True)
class _Bucket(Generic[K]):
    """All that was used ``uses`` times, in the order of last use, between those of fewer and of more."""

    uses: int
    keys: OrderedDict[K, None] = field(default_factory=OrderedDict)
    fewer: _Bucket[K] | None = None
    more: _Bucket[K] | None = None


class LeastFrequentlyUsed(Generic[K]):
    """O(1) each: buckets by number of uses, in a linked list without empty ones."""

    __slots__ = ("_floor", "_where")

    def __init__(self) -> None:
        self._where: dict[K, _Bucket[K]] = {}
        self._floor: _Bucket[K] = _Bucket(0)

    def __len__(self) -> int:
        return len(self._where)

    def add(self, key: K, facts: Facts) -> None:  # noqa: ARG002 - goes by use alone
        self.remove(key)
        self._put(key, self._floor)

    def touch(self, key: K) -> None:
        bucket = self._where[key]
        self._put(key, bucket)
        self._take(key, bucket)

    def remove(self, key: K) -> None:
        if (bucket := self._where.pop(key, None)) is not None:
            self._take(key, bucket)

    def victim(self) -> K | None:
        least = self._floor.more
        return None if least is None else next(iter(least.keys))

    def _put(self, key: K, after: _Bucket[K]) -> None:
        """Into the bucket of one use more than ``after``."""
        bucket = after.more
        if bucket is None or bucket.uses != after.uses + 1:
            bucket = _Bucket(after.uses + 1, fewer=after, more=after.more)
            if after.more is not None:
                after.more.fewer = bucket
            after.more = bucket
        bucket.keys[key] = None
        self._where[key] = bucket

    def _take(self, key: K, bucket: _Bucket[K]) -> None:
        del bucket.keys[key]
        if not bucket.keys and bucket.fewer is not None:
            bucket.fewer.more = bucket.more
            if bucket.more is not None:
                bucket.more.fewer = bucket.fewer


class _Ranked(ABC, Generic[K]):
    """A heap whose outdated items are passed over, and swept out when they are more than the rest."""

    __slots__ = ("_heap", "_live", "_tick")

    def __init__(self) -> None:
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

    @abstractmethod
    def _rank(self, facts: Facts) -> float:
        """The lowest goes first."""

    def _push(self, key: K, rank: float, facts: Facts) -> None:
        self._tick += 1
        self._live[key] = (rank, self._tick, facts)
        heapq.heappush(self._heap, (rank, self._tick, key))
        self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(rank, tick, key) for key, (rank, tick, _) in self._live.items()]
            heapq.heapify(self._heap)


class EndingSoonest(_Ranked[K]):
    """O(log n) each."""

    __slots__ = ()

    def _rank(self, facts: Facts) -> float:
        return facts.ends_at


class LowestPriority(_Ranked[K]):
    """O(log n) each."""

    __slots__ = ()

    def _rank(self, facts: Facts) -> float:
        return facts.priority


class Largest(_Ranked[K]):
    """O(log n) each."""

    __slots__ = ()

    def _rank(self, facts: Facts) -> float:
        return -facts.size


def policy_of(eviction: Eviction) -> Policy[K]:
    """A new one that knows nothing yet."""
    made: dict[Eviction, Callable[[], Policy[K]]] = {
        Eviction.LRU: LeastRecentlyUsed,
        Eviction.LFU: LeastFrequentlyUsed,
        Eviction.TTL: EndingSoonest,
        Eviction.PRIORITY: LowestPriority,
        Eviction.SIZE: Largest,
    }
    return made[eviction]()
