"""Counting what LMCache loaded, against one that counts late. On time it counts as the real one, see the live tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from cwm.domain.engine import Tier
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier, Loads
from cwm.services.loads import loads_since

BEFORE = Loads(10.0, {Tier.REDIS: 3.0}, reads=50.0)
READ = Loads(10.0, {Tier.REDIS: 3.0}, reads=54.0)
AFTER = Loads(14.0, {Tier.REDIS: 4.0}, reads=54.0)
COUNTED = Loads(4.0, {Tier.REDIS: 1.0}, reads=4.0)


@dataclass
class LateCounts:
    """Answers in turn, the last one again and again."""

    answers: list[Loads]

    async def loads(self, cache_salt: str) -> Loads:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class AnswersCountedClock:
    """A quarter of a second goes by with each look at it."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        self.seconds += 0.25
        return self.seconds


def since(found: int, *answers: Loads) -> tuple[Loads | None, int]:
    """What is told of a prefetch that ``found`` so many chunks, and how many answers were left unasked."""
    cache = LateCounts(list(answers))
    told = asyncio.run(
        loads_since(BEFORE, cast("KvTier", cache), "salt", found, cast("Clock", AnswersCountedClock()))
    )
    return told, len(cache.answers)


def test_loads_that_lmcache_had_yet_to_count_are_waited_for() -> None:
    assert since(4, *[BEFORE] * 8, AFTER)[0] == COUNTED


def test_the_reads_of_one_answer_vouch_for_the_loads_of_the_next() -> None:
    assert since(4, READ, AFTER)[0] == COUNTED


def test_what_l1_had_is_not_waited_for_once_the_prefetch_is_counted() -> None:
    told, unasked = since(4, BEFORE, READ, READ, AFTER)
    assert told is not None
    assert (told.chunks, unasked) == (0.0, 1)


def test_a_load_is_not_told_without_its_tier() -> None:
    assert since(4, Loads(14.0, {Tier.REDIS: 3.0}, reads=50.0), AFTER)[0] == COUNTED


def test_what_is_counted_at_once_is_asked_once() -> None:
    assert since(4, AFTER, BEFORE) == (COUNTED, 1)


def test_what_lmcache_does_not_count_in_time_is_not_taken_for_l1() -> None:
    assert since(4, BEFORE)[0] is None


def test_totals_that_began_anew_tell_nothing() -> None:
    assert since(4, Loads(0.0, {}), AFTER)[0] is None
    assert since(4, Loads(0.0, {Tier.REDIS: 1.0}, at_once=True))[0] is None


def test_counts_of_what_has_ended_are_asked_once() -> None:
    told, unasked = since(4, Loads(10.0, {Tier.REDIS: 3.0}, reads=50.0, at_once=True), AFTER)
    assert told is not None
    assert (told.chunks, unasked) == (0.0, 1)
