"""Contents in this process's memory: hot ones plain, warm ones compressed, under one byte budget."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, TypeAlias

from cwm.domain.eviction import Eviction, Facts, Policy, policy_of

_USABLE: Final = 0.9
# Overhead of one entry: dictionary and policy slots, the key's tuple and digest, its facts.
_ENTRY_BYTES: Final = 760

Key: TypeAlias = tuple[str, str]
"""Tenant and digest."""


@dataclass(slots=True)
class _CacheEntry:
    plain: bytes | None
    stored: bytes | None
    facts: Facts
    last_use: int
    uses: int

    @property
    def size(self) -> int:
        payload = sum(sys.getsizeof(each) for each in (self.plain, self.stored) if each is not None)
        return _ENTRY_BYTES + payload


@dataclass(slots=True)
class CacheCounts:
    """Counts since the start. ``evicted``: dropped from memory."""

    hits: int = 0
    warm_hits: int = 0
    misses: int = 0
    evicted: int = 0

    @property
    def reads(self) -> dict[str, int]:
        return {"hit": self.hits, "warm_hit": self.warm_hits, "miss": self.misses}


@dataclass(slots=True)
class ContentCache:
    """A cache in front of the shared store: nothing is lost when entries are dropped.

    Above 90 % of ``budget_bytes`` entries go at once, in the order of the eviction policy: hot ones cool, warm ones are
    dropped. ``reserved`` is how many bytes others use of the same budget.
    """

    budget_bytes: int
    eviction: Eviction = Eviction.LRU
    counts: CacheCounts = field(default_factory=CacheCounts)
    reserved: int = 0
    _entries: dict[Key, _CacheEntry] = field(default_factory=dict)
    _hot: Policy[Key] = field(init=False)
    _warm: Policy[Key] = field(init=False)
    _hot_bytes: int = 0
    _warm_bytes: int = 0
    _uses: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._hot, self._warm = policy_of(self.eviction), policy_of(self.eviction)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        return self._hot_bytes + self._warm_bytes + self.reserved

    @property
    def limit_bytes(self) -> int:
        return int(self.budget_bytes * _USABLE)

    @property
    def hot(self) -> int:
        return len(self._hot)

    @property
    def warm(self) -> int:
        return len(self._warm)

    def plain(self, key: Key, now: float) -> bytes | None:
        """The plain value if it is hot and not expired at ``now``. Counts as a use."""
        entry = self._entries.get(key)
        if entry is None or entry.plain is None or entry.facts.ends_at <= now:
            return None
        entry.last_use, entry.uses = next(self._uses), entry.uses + 1
        self._hot.touch(key)
        self.counts.hits += 1
        return entry.plain

    def stored(self, key: Key, now: float) -> bytes | None:
        """The compressed form if it is kept and not expired at ``now``."""
        entry = self._entries.get(key)
        return None if entry is None or entry.facts.ends_at <= now else entry.stored

    def facts(self, key: Key) -> Facts | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.facts

    def add(self, key: Key, plain: bytes, stored: bytes | None, priority: int, ends_at: float) -> None:
        """Add a hot entry. ``stored`` is its compressed form, None if that would not be smaller."""
        previous = self._entries.get(key)
        uses = 1 if previous is None else previous.uses + 1
        self.drop(key)
        entry = _CacheEntry(plain, stored, Facts(0, priority, ends_at), next(self._uses), uses)
        size = entry.size
        if size > self.limit_bytes - self.reserved:
            return
        entry.facts = Facts(size, priority, ends_at)
        self._entries[key] = entry
        self._hot_bytes += size
        self._rank(key, entry)
        self._enforce()

    def prolong(self, key: Key, priority: int, ends_at: float) -> None:
        """Another holder keeps it too: raise its priority and end to that holder's."""
        if (entry := self._entries.get(key)) is not None:
            facts = entry.facts
            entry.facts = Facts(facts.size, max(facts.priority, priority), max(facts.ends_at, ends_at))
            entry.last_use, entry.uses = next(self._uses), entry.uses + 1
            self._rank(key, entry)

    def drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.plain is None:
            self._warm.remove(key)
            self._warm_bytes -= entry.size
        else:
            self._hot.remove(key)
            self._hot_bytes -= entry.size

    def reserve(self, size: int) -> None:
        """Set how many bytes others use of the budget."""
        self.reserved = size
        self._enforce()

    def reconfigure(self, budget_bytes: int, eviction: Eviction) -> None:
        """Change the budget and the policy; the order and number of uses are kept."""
        self.budget_bytes = budget_bytes
        if eviction is not self.eviction:
            self.eviction = eviction
            self._hot, self._warm = policy_of(eviction), policy_of(eviction)
            for key, entry in sorted(self._entries.items(), key=lambda each: each[1].last_use):
                self._rank(key, entry)
        self._enforce()

    def _rank(self, key: Key, entry: _CacheEntry) -> None:
        (self._warm if entry.plain is None else self._hot).add(key, replace(entry.facts, uses=entry.uses))

    def _enforce(self) -> None:
        while self.used_bytes > self.limit_bytes and self._entries:
            hot = self._hot.victim()
            mostly_hot = self._hot_bytes >= self._warm_bytes
            warm = self._warm.victim()
            if hot is not None and (mostly_hot or warm is None):
                self._cool(hot)
            elif warm is not None:
                self.drop(warm)
                self.counts.evicted += 1

    def _cool(self, key: Key) -> None:
        entry = self._entries[key]
        self.drop(key)
        if entry.stored is None:
            self.counts.evicted += 1
            return
        entry.plain = None
        entry.facts = Facts(entry.size, entry.facts.priority, entry.facts.ends_at)
        self._entries[key] = entry
        self._warm_bytes += entry.size
        self._rank(key, entry)


NEVER: Final = math.inf
