"""Where restored tokens came from, of engines that tell and of engines that only count.

What a real engine counts and tells is held by the live tests of thaws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from cwm.domain.engine import EngineIdentity, Tier
from cwm.ports.engine import Completion, Counters, Engine
from cwm.services.kv.origins import Origins
from cwm.services.kv.prefix import Prefix

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 32, 32, "blake3", engine="one")
PREFIX = Prefix(tuple(range(100)), "salt", IDENTITY)
FROM_REDIS = {Tier.REDIS: 2}


@dataclass
class CountingEngine:
    """``totals`` are the tokens loaded from LMCache and computed so far, at one look after another."""

    totals: list[tuple[int, int]]
    looks: int = field(default=0)

    one: str | None = None
    """The engine whose counters are asked for; None: the sums of all."""

    def on(self, engine: str) -> CountingEngine:
        self.one = engine
        return self

    async def counters(self) -> Counters:
        assert self.one == IDENTITY.engine
        loaded, computed = self.totals[self.looks]
        self.looks += 1
        sources = {"external_kv_transfer": loaded, "local_compute": computed, "local_cache_hit": 0}
        return Counters(sources, 0, 0, 0, 0, 0)


def origins(*totals: tuple[int, int]) -> tuple[Origins, CountingEngine]:
    engine = CountingEngine(list(totals))
    return Origins(cast("Engine", engine)), engine


def answer(cached: int, loaded: int | None = None) -> Completion:
    return Completion("", (1,), "length", 100, cached, "fp-1", loaded_tokens=loaded)


def thawed(of: Origins, told: Completion, below: Mapping[Tier, int] | None = FROM_REDIS) -> dict[str, int]:
    async def once() -> dict[str, int]:
        return await of.split(told, await of.before(IDENTITY), below, PREFIX)

    return asyncio.run(once())


def test_an_engine_that_tells_is_asked_for_its_counters_only_until_it_told() -> None:
    of, engine = origins((0, 0))
    assert thawed(of, answer(96, loaded=96)) == {"redis": 64, "cpu": 32}
    assert thawed(of, answer(96, loaded=32)) == {"gpu": 64, "redis": 32}
    assert engine.looks == 1


def test_of_an_engine_that_only_counts_the_counters_are_compared() -> None:
    of, engine = origins((500, 700), (596, 704))
    assert thawed(of, answer(96)) == {"redis": 64, "cpu": 32}
    assert engine.looks == 2


def test_what_others_were_counted_in_is_of_unknown_origin() -> None:
    of, _ = origins((500, 700), (900, 704))
    assert thawed(of, answer(96)) == {"unknown": 96}


def test_an_engine_that_no_longer_tells_is_counted_from_the_next_time_on() -> None:
    of, engine = origins((0, 0), (0, 0), (96, 4))
    thawed(of, answer(96, loaded=96))
    assert thawed(of, answer(96)) == {"unknown": 96}
    assert thawed(of, answer(96)) == {"redis": 64, "cpu": 32}
    assert engine.looks == 3


def test_blocks_that_were_asked_for_and_did_not_arrive_are_not_counted() -> None:
    of, _ = origins((0, 0))
    assert thawed(of, answer(64, loaded=96)) == {"redis": 64}


def test_several_tiers_are_told_apart() -> None:
    of, _ = origins((0, 0))
    both = {Tier.REDIS: 1, Tier.DISK: 1}
    assert thawed(of, answer(96, loaded=96), both) == {"redis": 32, "disk": 32, "cpu": 32}


def test_of_which_tier_the_engine_had_some_itself_nobody_knows() -> None:
    of, _ = origins((0, 0))
    both = {Tier.REDIS: 1, Tier.DISK: 1}
    assert thawed(of, answer(96, loaded=32), both) == {"gpu": 64, "unknown": 32}


def test_of_an_lmcache_that_does_not_tell_the_tier_is_unknown() -> None:
    of, _ = origins((0, 0))
    assert thawed(of, answer(96, loaded=32), below=None) == {"gpu": 64, "unknown": 32}


def test_nothing_restored_came_from_nowhere() -> None:
    of, _ = origins((0, 0))
    assert thawed(of, answer(0, loaded=0), below={}) == {}
