"""Planning, in front of parts that fail or do not obey.

Their normal behaviour is the real engine's: the live tests plan on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import StorageReadError, StorageWriteError
from cwm.domain.planner import Choice, Decision
from cwm.domain.speeds import Observation, Speeds
from cwm.ports.engine import Completion, Generation
from cwm.ports.kv_tier import Placement, PrefixKey
from cwm.services.kv.planner import Planner, resident
from cwm.services.kv.prefix import Prefix
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 64, 64, "blake3")
PREFIX = Prefix(tuple(range(1000)), "salt", IDENTITY)
STORED = 15 * 64
RECOMPUTING_WINS = Speeds().plus(
    [Observation(None, 0, 0, 1000, 20.0), Observation("redis", STORED, STORED, 40, 200.0)] * 3
)


class Unlimited(FakeEngine):
    """Takes no limit, and does not tell what it loaded."""

    async def complete(self, generation: Generation) -> Completion:
        return replace(await super().complete(generation), loaded_tokens=None)


class Asked(FakeKvTier):
    """Counts how often its directory is asked."""

    asked = 0

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        self.asked += 1
        return await super().lookup(prefix)


async def filled() -> Asked:
    """The chunks of the prefix are below L1, and the directory knows."""
    tier = Asked(chunk_size=64)
    await engine(tier).complete(PREFIX.request())
    await tier.storing()
    tier.evict_l1()
    await tier.lookup(PREFIX.key)
    tier.asked = 0
    return tier


def engine(tier: FakeKvTier | None = None, *, away: bool = False, fingerprint: str = "fp-1") -> FakeEngine:
    return FakeEngine(
        tier or FakeKvTier(chunk_size=64), model="m", root="/m", away=away, fingerprint=fingerprint
    )


@dataclass
class Records:
    kept: Speeds = field(default_factory=Speeds)
    down: bool = False

    async def speeds(self, engine: str) -> Speeds:
        if self.down:
            raise StorageReadError("gone")
        return self.kept

    async def add_speeds(self, engine: str, observations: Sequence[Observation], at: datetime) -> Speeds:
        if self.down:
            raise StorageWriteError("gone")
        self.kept = self.kept.plus(observations)
        return self.kept


def planner(records: Records, served: FakeEngine | None = None, choice: Choice = Choice.AUTO) -> Planner:
    served = served or engine()
    return Planner(
        engine=served,
        kv_tier=served.kv_tier,
        records=records,
        meter=PrometheusMeter(),
        clock=SystemClock(),
        choice=choice,
    )


def answered(cached: int, loaded: int | None = None) -> Completion:
    return Completion("", (1,), "length", 1000, cached, "fp-1", loaded_tokens=loaded)


async def thawed(planner: Planner, answer: Completion, by_tier: dict[str, int]) -> None:
    plan = await planner.plan(PREFIX)
    planner.learn(PREFIX, plan, answer, by_tier, prefetch_ms=10.0, engine_ms=20.0)
    await planner.settle()


async def test_speeds_that_cannot_be_read_do_not_keep_a_thaw_from_loading() -> None:
    plan = await planner(Records(RECOMPUTING_WINS, down=True)).plan(PREFIX)
    assert (plan.decision, plan.predicted_ms) == (Decision.LOAD, None)


async def test_a_directory_that_is_down_does_not_keep_a_thaw_from_loading() -> None:
    plan = await planner(Records(RECOMPUTING_WINS), engine(FakeKvTier(away=True))).plan(PREFIX)
    assert plan.decision is Decision.LOAD


async def test_the_directory_is_not_asked_where_any_tier_is_clearly_faster_than_computing() -> None:
    loading_wins = Speeds().plus(
        [Observation(None, 0, 0, 1000, 900.0), Observation("redis", STORED, STORED, 40, 100.0)] * 3
    )
    for speeds, asked in ((loading_wins, 0), (RECOMPUTING_WINS, 1), (Speeds(), 1)):
        tier = await filled()
        await planner(Records(speeds), engine(tier)).plan(PREFIX)
        assert tier.asked == asked


async def test_an_engine_that_does_not_obey_a_limit_is_not_asked_to_again() -> None:
    served = Unlimited(await filled(), model="m", root="/m")
    service = planner(Records(RECOMPUTING_WINS), served)
    assert (await service.plan(PREFIX)).decision is Decision.RECOMPUTE
    await thawed(service, answered(STORED, None), {"unknown": STORED})
    assert (await service.plan(PREFIX)).decision is Decision.LOAD


async def test_an_engine_that_obeys_is_asked_again() -> None:
    service = planner(Records(RECOMPUTING_WINS), engine(await filled()))
    await thawed(service, answered(0, 0), {})
    assert (await service.plan(PREFIX)).decision is Decision.RECOMPUTE


async def test_speeds_that_cannot_be_written_down_are_used_all_the_same() -> None:
    records = Records(down=True)
    service = planner(records, engine(await filled()))
    for _ in range(2):
        await thawed(service, answered(STORED), {"redis": STORED})
    assert (await service.plan(PREFIX)).load_ms == pytest.approx(30, rel=0.1)


async def test_tokens_of_several_or_unknown_tiers_teach_nothing() -> None:
    records = Records()
    for by_tier in ({"redis": 500, "cpu": 460}, {"unknown": STORED}, {"gpu": 64, "redis": 896}):
        await thawed(planner(records), answered(STORED), by_tier)
    assert records.kept == Speeds()


async def test_two_small_prefills_are_timed_aside_that_load_and_store_nothing() -> None:
    served, records = engine(), Records()
    await thawed(planner(records, served), answered(STORED), {"redis": STORED})
    assert [len(sent.token_ids) for sent in served.requests[:2]] == [64, 256]
    assert {(sent.load_tokens, sent.store_tokens) for sent in served.requests} == {(0, 0)}
    assert PREFIX.cache_salt not in {sent.cache_salt for sent in served.requests}
    assert {64, 256} <= {o.computed for o in records.kept.observations if o.tier is None}


async def test_nothing_is_tried_where_the_operator_decides() -> None:
    served = engine()
    for choice in (Choice.LOAD, Choice.RECOMPUTE):
        await thawed(planner(Records(), served, choice), answered(0, 0), {})
    assert served.requests == []


async def test_an_engine_that_dies_in_a_trial_ends_the_trials() -> None:
    served = engine(away=True)
    await thawed(planner(Records(), served), answered(STORED), {"redis": STORED})
    assert len(served.requests) == 1


async def test_a_trial_that_another_engine_answered_teaches_nothing() -> None:
    records = Records()
    await thawed(planner(records, engine(fingerprint="fp-2")), answered(STORED), {"redis": STORED})
    assert [o.tier for o in records.kept.observations] == ["redis"]


async def test_thaws_at_once_share_one_series_of_trials() -> None:
    served = engine()
    service = planner(Records(), served)
    plan = await service.plan(PREFIX)
    for _ in range(10):
        service.learn(PREFIX, plan, answered(STORED), {"redis": STORED}, prefetch_ms=1.0, engine_ms=2.0)
    await asyncio.wait_for(service.settle(), 30)
    assert len(served.requests) <= 6


@pytest.mark.parametrize(
    ("order", "runs"),
    [
        ((Tier.CPU, Tier.REDIS, Tier.DISK), [("cpu", 128), ("redis", 64), ("disk", 64)]),
        ((Tier.CPU, Tier.DISK, Tier.REDIS), [("cpu", 128), ("disk", 128)]),
    ],
)
def test_residency_is_by_the_tier_that_is_asked_first_and_ends_at_the_first_chunk_that_none_holds(
    order: tuple[Tier, ...], runs: list[tuple[str, int]]
) -> None:
    tiers = [{Tier.CPU, Tier.DISK}, {Tier.CPU}, {Tier.DISK, Tier.REDIS}, {Tier.DISK}, set(), {Tier.CPU}]
    placements = [Placement("h", 1, frozenset(held)) for held in tiers]
    assert resident(placements, 64, order) == runs
