"""Planning, in front of parts that fail or do not obey.

Their normal behaviour is the real engine's: the live tests plan on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import EngineConnectionError, StorageReadError, StorageWriteError
from cwm.domain.planner import Choice, Decision
from cwm.domain.speeds import Observation, Speeds
from cwm.ports.engine import Completion, Generation
from cwm.ports.kv_tier import Placement, PrefixKey
from cwm.services.kv.planner import Planner, resident
from cwm.services.kv.prefix import Prefix

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 64, 64, "blake3")
PREFIX = Prefix(tuple(range(1000)), "salt", IDENTITY)
STORED = 15 * 64
RECOMPUTING_WINS = Speeds().plus(
    [Observation(None, 0, 0, 1000, 20.0), Observation("redis", STORED, STORED, 40, 200.0)] * 3
)


@dataclass
class TrialEngine:
    """Says that it loaded ``loaded`` tokens; None as an engine does that takes no limit."""

    loaded: int | None = 0
    sent: list[Generation] = field(default_factory=list)
    dead: bool = False
    fingerprint: str = "fp-1"

    async def complete(self, generation: Generation) -> Completion:
        self.sent.append(generation)
        if self.dead:
            raise EngineConnectionError("gone")
        return Completion(
            "", (1,), "length", len(generation.token_ids), 0, self.fingerprint, loaded_tokens=self.loaded
        )


@dataclass
class Directory:
    tiers: frozenset[Tier] = frozenset({Tier.REDIS, Tier.DISK})
    down: bool = False
    asked: int = 0

    def lower_tiers(self) -> tuple[Tier, ...]:
        return ()

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        self.asked += 1
        if self.down:
            raise EngineConnectionError("gone")
        return [Placement(f"{n:064x}", 1000, self.tiers) for n in range(len(prefix.token_ids) // 64)]


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


def planner(
    records: Records,
    engine: TrialEngine | None = None,
    directory: Directory | None = None,
    choice: Choice = Choice.AUTO,
) -> Planner:
    return Planner(
        cast("Any", engine or TrialEngine()),
        cast("Any", directory or Directory()),
        records,
        PrometheusMeter(),
        SystemClock(),
        choice,
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
    plan = await planner(Records(RECOMPUTING_WINS), directory=Directory(down=True)).plan(PREFIX)
    assert plan.decision is Decision.LOAD


async def test_the_directory_is_not_asked_where_any_tier_is_clearly_faster_than_computing() -> None:
    loading_wins = Speeds().plus(
        [Observation(None, 0, 0, 1000, 900.0), Observation("redis", STORED, STORED, 40, 100.0)] * 3
    )
    for speeds, asked in ((loading_wins, 0), (RECOMPUTING_WINS, 1), (Speeds(), 1)):
        directory = Directory()
        await planner(Records(speeds), directory=directory).plan(PREFIX)
        assert directory.asked == asked


async def test_an_engine_that_does_not_obey_a_limit_is_not_asked_to_again() -> None:
    service = planner(Records(RECOMPUTING_WINS))
    assert (await service.plan(PREFIX)).decision is Decision.RECOMPUTE
    await thawed(service, answered(STORED, None), {"unknown": STORED})
    assert (await service.plan(PREFIX)).decision is Decision.LOAD


async def test_an_engine_that_obeys_is_asked_again() -> None:
    service = planner(Records(RECOMPUTING_WINS))
    await thawed(service, answered(0, 0), {})
    assert (await service.plan(PREFIX)).decision is Decision.RECOMPUTE


async def test_speeds_that_cannot_be_written_down_are_used_all_the_same() -> None:
    records = Records(down=True)
    service = planner(records)
    for _ in range(2):
        await thawed(service, answered(STORED), {"redis": STORED})
    assert (await service.plan(PREFIX)).load_ms == pytest.approx(30, rel=0.1)


async def test_tokens_of_several_or_unknown_tiers_teach_nothing() -> None:
    records = Records()
    for by_tier in ({"redis": 500, "cpu": 460}, {"unknown": STORED}, {"gpu": 64, "redis": 896}):
        await thawed(planner(records), answered(STORED), by_tier)
    assert records.kept == Speeds()


async def test_two_small_prefills_are_timed_aside_that_load_and_store_nothing() -> None:
    engine, records = TrialEngine(), Records()
    await thawed(planner(records, engine), answered(STORED), {"redis": STORED})
    assert [len(sent.token_ids) for sent in engine.sent[:2]] == [64, 256]
    assert {(sent.load_tokens, sent.store_tokens) for sent in engine.sent} == {(0, 0)}
    assert PREFIX.cache_salt not in {sent.cache_salt for sent in engine.sent}
    assert {64, 256} <= {o.computed for o in records.kept.observations if o.tier is None}


async def test_nothing_is_tried_where_the_operator_decides() -> None:
    engine = TrialEngine()
    for choice in (Choice.LOAD, Choice.RECOMPUTE):
        await thawed(planner(Records(), engine, choice=choice), answered(0, 0), {})
    assert engine.sent == []


async def test_an_engine_that_dies_in_a_trial_ends_the_trials() -> None:
    engine = TrialEngine(dead=True)
    await thawed(planner(Records(), engine), answered(STORED), {"redis": STORED})
    assert len(engine.sent) == 1


async def test_a_trial_that_another_engine_answered_teaches_nothing() -> None:
    records = Records()
    await thawed(planner(records, TrialEngine(fingerprint="fp-2")), answered(STORED), {"redis": STORED})
    assert [o.tier for o in records.kept.observations] == ["redis"]


async def test_thaws_at_once_share_one_series_of_trials() -> None:
    engine = TrialEngine()
    service = planner(Records(), engine)
    plan = await service.plan(PREFIX)
    for _ in range(10):
        service.learn(PREFIX, plan, answered(STORED), {"redis": STORED}, prefetch_ms=1.0, engine_ms=2.0)
    await asyncio.wait_for(service.settle(), 30)
    assert len(engine.sent) <= 6


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
