"""The cache of contents against plain bookkeeping: what it counts is what it has, whatever happens to it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cwm.domain.eviction import Eviction
from cwm.services.contents.cache import ContentCache

BUDGET = 20_000
KEYS = st.integers(0, 12).map(lambda number: ("acme", str(number)))
ENDS = st.sampled_from([5.0, 10.0, float("inf")])


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = ContentCache(BUDGET)
        self.plain: dict[tuple[str, str], bytes] = {}
        self.ends: dict[tuple[str, str], float] = {}

    @rule(key=KEYS, size=st.integers(0, 9000), shrinks=st.booleans(), priority=st.integers(0, 10), ends=ENDS)
    def add(self, key: tuple[str, str], size: int, shrinks: bool, priority: int, ends: float) -> None:
        plain = bytes([int(key[1])]) * size
        self.cache.add(key, plain, plain[: size // 4] if shrinks else None, priority, ends)
        self.plain[key], self.ends[key] = plain, ends

    @rule(key=KEYS, now=st.sampled_from([0.0, 6.0, 11.0]))
    def read(self, key: tuple[str, str], now: float) -> None:
        hits = self.cache.counts.hits
        plain, stored = self.cache.plain(key, now), self.cache.stored(key, now)
        assert self.cache.counts.hits - hits == (plain is not None)
        if plain is not None or stored is not None:
            assert self.ends[key] > now
        if plain is not None:
            assert plain == self.plain[key]
        if stored is not None:
            assert stored == self.plain[key][: len(self.plain[key]) // 4]

    @rule(key=KEYS, priority=st.integers(0, 10), ends=ENDS)
    def prolong(self, key: tuple[str, str], priority: int, ends: float) -> None:
        self.cache.prolong(key, priority, ends)
        if key in self.ends:
            self.ends[key] = max(self.ends[key], ends)

    @rule(key=KEYS)
    def drop(self, key: tuple[str, str]) -> None:
        self.cache.drop(key)
        assert self.cache.plain(key, 0.0) is self.cache.stored(key, 0.0) is None

    @rule(size=st.integers(0, BUDGET))
    def reserve(self, size: int) -> None:
        self.cache.reserve(size)

    @rule(budget=st.sampled_from([BUDGET, BUDGET // 2]), eviction=st.sampled_from(Eviction))
    def reconfigure(self, budget: int, eviction: Eviction) -> None:
        self.cache.reconfigure(budget, eviction)

    @invariant()
    def counts_what_it_has(self) -> None:
        held = [facts for key in self.ends if (facts := self.cache.facts(key)) is not None]
        assert self.cache.used_bytes == self.cache.reserved + sum(facts.size for facts in held)
        assert self.cache.used_bytes <= self.cache.limit_bytes or not held
        assert self.cache.hot + self.cache.warm == len(self.cache) == len(held)


def test_the_cache_counts_what_it_has() -> None:
    Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
    Machine.TestCase("runTest").debug()
