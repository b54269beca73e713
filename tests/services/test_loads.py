"""Counting what LMCache loaded, against one that counts late. On time it counts as the real one, see the live tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from cwm.adapters.local.clock import SystemClock
from cwm.domain.engine import Tier
from cwm.ports.kv_tier import KvTier, Loads
from cwm.services.loads import loads_since

BEFORE = Loads(10.0, {Tier.REDIS: 3.0})
AFTER = Loads(14.0, {Tier.REDIS: 4.0})


@dataclass
class LateCounts:
    """Answers in turn, the last one again and again."""

    answers: list[Loads]

    async def loads(self, cache_salt: str) -> Loads:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def since(chunks: int, *answers: Loads) -> tuple[Loads, int]:
    """What is told of ``chunks`` that were found, and how many answers were left unasked."""
    cache = LateCounts(list(answers))
    told = asyncio.run(loads_since(BEFORE, cast("KvTier", cache), "salt", chunks, SystemClock()))
    return told, len(cache.answers)


def test_loads_that_lmcache_had_yet_to_count_are_waited_for() -> None:
    waiting = Loads(10.0, {Tier.REDIS: 3.0}, uncounted=2)
    assert since(4, waiting, waiting, AFTER)[0] == Loads(4.0, {Tier.REDIS: 1.0})


def test_an_empty_queue_vouches_for_the_next_answer_not_for_its_own_totals() -> None:
    assert since(4, BEFORE, AFTER)[0] == Loads(4.0, {Tier.REDIS: 1.0})


def test_what_l1_had_is_not_waited_for() -> None:
    told, unasked = since(4, BEFORE, BEFORE, AFTER)
    assert (told.chunks, unasked) == (0.0, 1)


def test_what_is_counted_at_once_is_asked_once() -> None:
    assert since(4, AFTER, BEFORE) == (Loads(4.0, {Tier.REDIS: 1.0}), 1)
