"""The watchdog's judgement, against a cache that fails in every way a real one was seen to.

Its normal behaviour is the real cache's: the live tests watch that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import EngineConnectionError, EngineTimeoutError
from cwm.domain.prefix import TokenIds
from cwm.ports.engine import Completion, Engine, Generation
from cwm.ports.kv_tier import (
    TIER_OF_ADAPTER,
    AttachedModel,
    KvTier,
    KvTierFacts,
    Prefetched,
    PrefixKey,
)
from cwm.services.engines.directory import EngineDirectory
from cwm.services.upkeep.watchdog import Watchdog
from tests.services.fleet_of import Fleet

IDENTITY = EngineIdentity("m", "/m", "fp-1", 8192, "0.32.0", 32, 32, "blake3")


@dataclass
class SecondsClock:
    """Each look at it takes a second."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds

    def now(self) -> Any:
        raise AssertionError("watching needs no date")


@dataclass
class FailingTier:
    """One canary in L1, Redis and on disk.

    ``contended`` and ``kept`` count down looks that another gateway disturbs, from the next store on those of
    ``contended_when_stored``; ``unwritten`` counts down stores of which a look drops L1 before anything is below.
    """

    adapters: tuple[str, ...] = ("valkey", "fs_native")
    instances: tuple[str, ...] = ("node0",)
    takes: set[Tier] = field(default_factory=lambda: {Tier.REDIS, Tier.DISK})
    holds: set[Tier] = field(default_factory=set)
    contended: int = 0
    kept: int = 0
    contended_when_stored: int = 0
    unwritten: int = 0
    hangs: bool = False
    answers: int = 1_000_000
    asked: list[PrefixKey] = field(default_factory=list)
    tells: bool = True
    silent: set[str] = field(default_factory=set)

    @property
    def order(self) -> list[Tier]:
        return [TIER_OF_ADAPTER[adapter] for adapter in self.adapters]

    async def facts(self) -> KvTierFacts | None:
        self.answers -= 1
        if self.answers < 0:
            raise EngineConnectionError("LMCache does not answer.")
        attached = (AttachedModel("/m", 1, 32),)
        return KvTierFacts("0.5.6", 32, "blake3", attached, self.adapters, self.instances)

    async def on(self, instance: str) -> FailingTier:
        if instance in self.silent:
            raise EngineConnectionError("LMCache does not answer.")
        return self

    async def drop_l1(self, prefix: PrefixKey) -> None:
        self.holds.discard(Tier.CPU)

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        self.asked.append(prefix)
        if self.hangs:
            raise EngineTimeoutError("LMCache did not finish a prefetch.")
        if self.contended:
            self.contended -= 1
            return Prefetched(0, 1)
        if self.kept:
            self.kept -= 1
            return Prefetched(1, 1, {})
        if Tier.CPU in self.holds:
            return Prefetched(1, 1, {} if self.tells else None)
        tier = next((t for t in self.order if t in self.holds & self.takes), None)
        if tier is None:
            return Prefetched(0, 1)
        self.holds.add(Tier.CPU)
        return Prefetched(1, 1, {tier: 1} if self.tells else None)

    def expected_hashes(self, prefix: PrefixKey) -> list[str]:
        return ["a" * 64]

    async def delete(self, prefix: PrefixKey, hashes: Sequence[str]) -> int:
        self.holds -= {Tier.CPU, *self.takes}
        return len(hashes)

    async def storing(self) -> bool:
        self.contended = self.contended_when_stored
        return False


@dataclass
class FlushedEngine:
    """Stores what no tier that answers holds, as vLLM does."""

    tier: FailingTier
    flushes: int = 0
    down: bool = False

    def names(self) -> tuple[str, ...]:
        return ("",)

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool) -> TokenIds:
        return tuple(text.encode())

    async def complete(self, generation: Generation) -> Completion:
        if self.down:
            raise EngineConnectionError("vLLM does not answer.")
        self.flushes += 1
        assert (len(generation.token_ids), generation.store_tokens, generation.max_tokens) == (33, 32, 1)
        written = set() if self.tier.unwritten else self.tier.takes
        if not self.tier.holds & {Tier.CPU, *self.tier.takes}:
            self.tier.unwritten = max(0, self.tier.unwritten - 1)
            self.tier.holds |= {Tier.CPU, *written}
        return Completion("", (1,), "length", 32, 0, "fp-1")


class KnownEngine(EngineDirectory):
    async def identity(self, model: str | None = None, engine: str = "", tenant: str = "") -> EngineIdentity:
        return IDENTITY


@dataclass
class Watched:
    """A watchdog, what it watches, and what it told."""

    tier: FailingTier
    engine: FlushedEngine
    dog: Watchdog
    meter: PrometheusMeter
    losses: list[str]

    async def look(self) -> str:
        """One look; its outcome by the metric."""
        before = self.looks()
        await self.dog.look()
        (outcome,) = (self.looks() - before).elements()
        return outcome

    def looks(self) -> Counter[str]:
        samples = self.meter.samples()
        return Counter(
            {s.labels["outcome"]: round(s.value) for s in samples if s.name == "cwm_watchdog_checks_total"}
        )

    def healthy(self) -> dict[str, float]:
        samples = self.meter.samples()
        return {s.labels["instance"]: s.value for s in samples if s.name == "cwm_watchdog_healthy"}


def watched(**tier: Any) -> Watched:
    cache = FailingTier(**tier)
    engine, meter, losses = FlushedEngine(cache), PrometheusMeter(), list[str]()
    as_engine, as_tier = cast("Engine", engine), cast("KvTier", cache)
    directory = KnownEngine(as_engine, as_tier, secret=b"key", weights_digest="")
    dog = Watchdog(
        as_engine,
        as_tier,
        directory,
        meter,
        SecondsClock(),
        on_loss=lambda: losses.append("lost"),
        most_pause_seconds=0,
    )
    return Watched(cache, engine, dog, meter, losses)


@pytest.fixture(params=[("valkey", "fs_native"), ("fs_native", "valkey")], ids=["redis-first", "disk-first"])
async def steady(request: pytest.FixtureRequest) -> Watched:
    """Everything works, and the canary is there."""
    seen = watched(adapters=request.param)
    assert [await seen.look(), await seen.look()] == ["stored", "found"]
    assert seen.healthy() == {"node0": 1.0}
    assert seen.engine.flushes == 1
    return seen


async def test_a_first_tier_that_is_away_is_a_fault_until_it_serves_again(steady: Watched) -> None:
    first = steady.tier.order[0]
    steady.tier.takes.remove(first)
    assert [await steady.look(), await steady.look()] == [f"without_{first}"] * 2
    fault = steady.dog.fault()
    assert fault is not None
    assert "node0" in fault
    assert ("comes back from its disk only" in fault) is (first is Tier.REDIS)
    assert ("comes back from its Redis only" in fault) is (first is Tier.DISK)
    assert steady.healthy() == {"node0": 0.0}
    assert steady.losses == []
    steady.tier.takes.add(first)
    assert await steady.look() == "found"
    assert steady.dog.fault() is None
    assert steady.losses == []


async def test_a_second_tier_that_is_away_is_none_of_the_watchdogs_business(steady: Watched) -> None:
    steady.tier.takes.remove(steady.tier.order[1])
    assert [await steady.look(), steady.dog.fault()] == ["found", None]


async def test_a_first_tier_that_came_back_empty_is_a_loss_although_the_other_has_it_all(
    steady: Watched,
) -> None:
    first = steady.tier.order[0]
    steady.tier.takes.remove(first)
    await steady.look()
    steady.tier.holds.remove(first)
    steady.tier.takes.add(first)
    assert await steady.look() == "lost"
    assert steady.losses == ["lost"]
    assert [await steady.look(), steady.dog.fault()] == ["found", None]


async def test_what_vanished_and_could_be_stored_again_is_told_once(steady: Watched) -> None:
    steady.tier.holds.clear()
    assert [await steady.look(), await steady.look()] == ["lost", "found"]
    assert steady.losses == ["lost"]
    assert steady.healthy() == {"node0": 1.0}


async def test_tiers_that_neither_hold_nor_take_are_broken_and_a_loss_once_they_work_again(
    steady: Watched,
) -> None:
    steady.tier.holds.clear()
    steady.tier.takes.clear()
    assert [await steady.look(), await steady.look()] == ["broken", "broken"]
    assert "does not come back" in (steady.dog.fault() or "")
    assert steady.losses == []
    steady.tier.takes |= {Tier.REDIS, Tier.DISK}
    assert await steady.look() == "lost"
    assert (steady.losses, steady.dog.fault()) == (["lost"], None)


async def test_of_an_lmcache_that_does_not_tell_its_tiers_it_is_enough_that_the_canary_comes_back(
    steady: Watched,
) -> None:
    steady.tier.tells = False
    assert await steady.look() == "found"
    steady.tier.holds.clear()
    steady.tier.takes.clear()
    assert await steady.look() == "broken"


async def test_a_prefetch_that_never_ends_is_a_fault(steady: Watched) -> None:
    steady.tier.hangs = True
    assert await steady.look() == "hung"
    assert "does not finish" in (steady.dog.fault() or "")
    assert steady.engine.flushes == 1, "vLLM would wait for the same LMCache"


async def test_a_canary_that_another_gateway_dropped_meanwhile_is_no_fault_and_no_loss(
    steady: Watched,
) -> None:
    steady.tier.contended = 1
    assert await steady.look() == "found"
    assert (steady.engine.flushes, steady.losses) == (1, [])


async def test_a_canary_that_another_gateway_keeps_in_l1_proves_nothing(steady: Watched) -> None:
    steady.tier.takes.remove(steady.tier.order[0])
    await steady.look()
    steady.tier.kept = 4
    assert await steady.look() == "not_looked"
    assert "Redis" in (steady.dog.fault() or "")
    assert steady.healthy() == {"node0": 0.0}


async def test_a_canary_that_another_gateway_is_just_storing_again_is_not_gone(steady: Watched) -> None:
    first = steady.tier.order[0]
    steady.tier.takes.remove(first)
    steady.tier.contended_when_stored = 2
    assert await steady.look() == f"without_{first}"


async def test_without_redis_the_disk_alone_is_healthy() -> None:
    seen = watched(adapters=("fs_native",), takes={Tier.DISK})
    assert [await seen.look(), await seen.look()] == ["stored", "found"]
    assert seen.dog.fault() is None


async def test_an_lmcache_without_lower_tiers_has_nothing_to_watch() -> None:
    seen = watched(adapters=(), takes=set())
    assert await seen.look() == "not_looked"
    assert (seen.engine.flushes, seen.tier.asked) == (0, [])


@pytest.mark.parametrize("answers", range(3))
async def test_vllm_is_asked_nothing_once_lmcache_does_not_answer(steady: Watched, answers: int) -> None:
    steady.tier.holds.clear()
    steady.tier.answers = answers
    assert await steady.look() == "not_looked"
    assert steady.engine.flushes == 1
    assert steady.dog.fault() is None


async def test_vllm_is_asked_nothing_while_any_lmcache_does_not_answer(steady: Watched) -> None:
    steady.tier.holds.clear()
    steady.tier.instances = ("node0", "node1")
    steady.tier.silent = {"node1"}
    await steady.dog.look()
    assert steady.looks()["not_looked"] == 2
    assert steady.engine.flushes == 1
    assert steady.healthy() == {"node0": 1.0}


async def test_a_vllm_that_is_down_is_not_the_watchdogs_business(steady: Watched) -> None:
    steady.engine.down = True
    assert await steady.look() == "found"
    steady.tier.holds.clear()
    assert await steady.look() == "not_looked"


async def test_an_instance_that_left_is_forgotten(steady: Watched) -> None:
    steady.tier.holds.clear()
    steady.tier.takes.clear()
    await steady.look()
    steady.tier.instances = ()
    await steady.dog.look()
    assert (steady.dog.fault(), steady.healthy()) == (None, {})


async def test_each_instance_has_its_own_canary() -> None:
    seen = watched(instances=("node0", "node1"))
    await seen.dog.look()
    assert len({key.token_ids for key in seen.tier.asked}) == 2
    assert len({key.cache_salt for key in seen.tier.asked}) == 1


async def test_of_several_engines_each_stores_the_canary_of_the_server_beside_it(fleet: Fleet) -> None:
    fleet.cwm.directory.rules = {name: EngineRules() for name in ("one", "two")}
    fleet.cwm.directory.rules |= {"other": EngineRules(is_router=True)}
    for name in fleet.engines:
        fleet.beside(name).attached[(await fleet.cwm.directory.identity(engine=name)).root] = None
    meter = PrometheusMeter()
    engine, tier = fleet.cwm.directory.engine, fleet.cwm.kv_tier
    dog = Watchdog(engine, tier, fleet.cwm.directory, meter, SecondsClock(), most_pause_seconds=0)
    asked = {name: len(each.requests) for name, each in fleet.engines.items()}
    seen = Watched(cast("Any", None), cast("Any", None), dog, meter, [])
    await dog.look()
    assert seen.looks() == {"stored": 2}
    assert seen.healthy() == {"one": 1.0, "two": 1.0}
    assert {name: len(each.requests) - asked[name] for name, each in fleet.engines.items()} == {
        "one": 1,
        "two": 1,
        "other": 0,
    }
    await dog.look()
    assert (seen.looks()["found"], dog.fault()) == (2, None)


async def test_an_answer_nobody_expected_does_not_end_the_watching(
    steady: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def garbled(_instance: str) -> FailingTier:
        monkeypatch.undo()
        raise KeyError("instances")

    monkeypatch.setattr(steady.tier, "on", garbled)
    watching = asyncio.create_task(steady.dog.watch(0.001))
    async with asyncio.timeout(10):
        while steady.looks()["found"] < 3:  # noqa: ASYNC110 - the meter tells nobody
            await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait({watching})
    assert "could not look" in caplog.text


async def test_an_interval_of_zero_looks_never() -> None:
    seen = watched()
    await seen.dog.watch(0)
    assert not seen.looks()


@pytest.mark.parametrize(("unwritten", "outcome"), [(1, "lost"), (2, "broken")])
async def test_what_was_dropped_before_it_was_written_below_is_stored_once_more(
    steady: Watched, unwritten: int, outcome: str
) -> None:
    steady.tier.holds.clear()
    steady.tier.unwritten = unwritten
    assert await steady.look() == outcome
    assert await steady.look() == ("found" if outcome == "lost" else "lost")
