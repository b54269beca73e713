"""When the census asks, and what it tells of those that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cwm.domain.engine import Tier
from cwm.domain.errors import EngineConnectionError, StorageReadError
from cwm.ports.kv_tier import TierUsage
from cwm.ports.meter import MemoryUse
from cwm.ports.registry import Stock
from cwm.services.agents.agents import Agents
from cwm.services.contents.cache import CacheCounts, ContentCache
from cwm.services.health.census import Census
from cwm.services.health.inspect import Component, Health, Inspect, Status
from tests.services.replicas_of import HandClock

STOCK = Stock({"active": 2}, {"durable": 1})
Ask = Callable[[], Awaitable[Any]]


class Dependencies:
    """They answer, unless told otherwise; and count how often they were asked."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.counting_takes = 0.0
        self.away = self.registry_away = False
        self.hang: asyncio.Event | None = None
        self.asked = {"health": 0, "usage": 0, "stock": 0}
        self.engines: dict[str, bool] = {}

    async def health(self) -> Health:
        self.asked["health"] += 1
        vllm = Status.UNHEALTHY if self.away else Status.HEALTHY
        registry = Status.UNHEALTHY if self.registry_away else Status.HEALTHY
        named = {
            "vllm": vllm,
            "registry": registry,
            "kv_store": Status.DEGRADED,
            "upstream:docs": Status.DEGRADED,
        }
        return Health(vllm, 1.0, "1", tuple(Component(n, s, "", 1.0) for n, s in named.items()))

    async def usage(self) -> list[TierUsage]:
        self.asked["usage"] += 1
        if self.away:
            raise EngineConnectionError("gone")
        return [TierUsage(Tier.CPU, 1, 2)]

    async def session_counts(self) -> dict[str, int]:
        return {"one": 3, "gone": 1}

    async def drains(self) -> dict[str, datetime]:
        return {"two": self.clock.now()}

    async def stock(self) -> Stock:
        self.asked["stock"] += 1
        self.clock.seconds += self.counting_takes
        if self.hang is not None:
            await self.hang.wait()
        if self.away:
            raise StorageReadError("gone")
        return STOCK


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def dependencies(clock: HandClock) -> Dependencies:
    return Dependencies(clock)


@pytest.fixture
def census(clock: HandClock, dependencies: Dependencies) -> Census:
    inspect = SimpleNamespace(
        health=dependencies.health,
        kv_tier=SimpleNamespace(usage=dependencies.usage),
        registry=SimpleNamespace(
            stock_of_every_tenant=dependencies.stock,
            session_counts_of_every_tenant=dependencies.session_counts,
            drained_engines=dependencies.drains,
        ),
        upstreams=list,
        engines=lambda: dependencies.engines,
        check_seconds=3.0,
    )
    load = SimpleNamespace(transactions=1, connections=5)
    cache = ContentCache(2**20, counts=CacheCounts(hits=3, warm_hits=2, misses=1), reserved=100)
    return Census(cast("Inspect", inspect), cast("Agents", ()), load, cache, clock, refresh_seconds=5)


async def test_nothing_is_asked_before_somebody_looks(census: Census, dependencies: Dependencies) -> None:
    assert census.now().sessions is None
    assert dependencies.asked == {"health": 0, "usage": 0, "stock": 0}


async def test_a_look_tells_what_there_is(census: Census) -> None:
    await census.look()
    now = census.now()
    assert (now.sessions, now.windows) == ({"active": 2}, {"durable": 1})
    assert now.tiers == [TierUsage(Tier.CPU, 1, 2)]
    assert now.components == {"vllm": True, "registry": True, "kv_store": True}
    assert (now.database_transactions, now.database_connections) == (1, 5)
    assert now.context == MemoryUse({"hit": 3, "warm_hit": 2, "miss": 1}, 100, int(2**20 * 0.9))


async def test_however_often_somebody_looks_it_is_asked_every_few_seconds(
    census: Census, dependencies: Dependencies, clock: HandClock
) -> None:
    for _ in range(10):
        await census.look()
    clock.seconds = 4.9
    await census.look()
    assert dependencies.asked == {"health": 1, "usage": 1, "stock": 1}
    clock.seconds = 5.0
    await census.look()
    assert dependencies.asked == {"health": 2, "usage": 2, "stock": 2}


async def test_a_registry_that_takes_long_to_count_is_counted_less_often(
    census: Census, dependencies: Dependencies, clock: HandClock
) -> None:
    dependencies.counting_takes = 2.0
    await census.look()
    for clock.seconds in (20.0, 101.0):
        await census.look()
    assert dependencies.asked["stock"] == 1
    assert dependencies.asked["health"] == 3
    clock.seconds = 102.0
    await census.look()
    assert dependencies.asked["stock"] == 2


async def test_what_does_not_answer_any_more_is_not_told_as_it_was(
    census: Census, dependencies: Dependencies, clock: HandClock
) -> None:
    await census.look()
    dependencies.away, clock.seconds = True, 10.0
    await census.look()
    now = census.now()
    assert (now.sessions, now.windows, now.tiers) == (None, None, ())
    assert now.components == {"vllm": False, "registry": True, "kv_store": True}


async def test_what_was_counted_before_the_registry_went_away_is_not_told(
    census: Census, dependencies: Dependencies, clock: HandClock
) -> None:
    dependencies.counting_takes = 1.0
    await census.look()
    dependencies.registry_away, clock.seconds = True, 10.0
    await census.look()
    assert dependencies.asked["stock"] == 1
    assert census.now().sessions is None


async def test_what_hangs_is_asked_once_and_given_up_at_the_end(
    census: Census,
    dependencies: Dependencies,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cwm.services.health.census._PATIENCE_SECONDS", 0.01)
    dependencies.hang = asyncio.Event()
    await census.look()
    clock.seconds = 60.0
    await census.look()
    assert dependencies.asked == {"health": 2, "usage": 2, "stock": 1}
    assert census.now().components == {"vllm": True, "registry": True, "kv_store": True}
    await census.aclose()
    assert census.now().sessions is None


async def test_each_of_several_engines_is_told_with_its_sessions(
    census: Census, dependencies: Dependencies
) -> None:
    dependencies.engines = {"one": True, "two": False}
    await census.look()
    standing = census.now()
    assert standing.engines == {"one": True, "two": False}
    assert standing.engine_sessions == {"one": 3, "two": 0}
    assert standing.engine_drains == {"one": False, "two": True}
