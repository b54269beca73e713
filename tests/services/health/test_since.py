"""Since when a component is unhealthy: the moment it was first seen so, whoever asked then, and whoever asks now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

import pytest

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.ports.engine import Engine
from cwm.services.health.inspect import Component, Inspect, Status
from cwm.services.kv.reuse import Reuse
from tests.eventually import eventually
from tests.fakes.engine import FakeEngine
from tests.services.replicas_of import HandClock


@dataclass
class CountingClock(HandClock):
    """Counts how often a time of day was asked for."""

    looks: int = 0

    def now(self) -> datetime:
        self.looks += 1
        return super().now()


@pytest.fixture
async def inspect(sqlite_url: str) -> AsyncIterator[Inspect]:
    database = open_database(sqlite_url)
    engine = FakeEngine()
    yield Inspect(
        SqlRegistry(database),
        engine,
        engine.kv_tier,
        CountingClock(),
        "1",
        0.0,
        lambda: None,
        list,
        Reuse(PrometheusMeter()),
        lambda: None,
    )
    await database.dispose()


def engine_of(inspect: Inspect) -> FakeEngine:
    assert isinstance(inspect.engine, FakeEngine)
    return inspect.engine


def clock_of(inspect: Inspect) -> CountingClock:
    assert isinstance(inspect.clock, CountingClock)
    return inspect.clock


async def vllm(inspect: Inspect) -> Component:
    return next(each for each in (await inspect.health()).components if each.name == "vllm")


async def test_a_component_is_down_since_it_was_first_seen_so_and_healthy_ones_have_no_date(
    inspect: Inspect,
) -> None:
    assert (await vllm(inspect)).since is None
    engine_of(inspect).away = True
    clock_of(inspect).seconds = 10
    first = await vllm(inspect)
    clock_of(inspect).seconds = 20

    assert first.since is not None
    assert (first.since.timestamp(), (await vllm(inspect)).since) == (10, first.since)


async def test_what_came_back_while_only_prometheus_looked_is_down_since_it_went_again(
    inspect: Inspect,
) -> None:
    engine, clock = engine_of(inspect), clock_of(inspect)
    for seconds, away in ((10, True), (20, False), (30, True)):
        clock.seconds, engine.away = seconds, away
        last = await vllm(inspect)

    assert last.since is not None
    assert last.since.timestamp() == 30


async def test_an_outage_that_nobody_asked_about_is_noticed_by_the_watch(inspect: Inspect) -> None:
    engine_of(inspect).away = True
    clock_of(inspect).seconds = 10
    watching = asyncio.create_task(inspect.watch(0))
    await eventually(lambda: clock_of(inspect).looks > 1)
    watching.cancel()
    clock_of(inspect).seconds = 20

    since = (await vllm(inspect)).since
    assert since is not None
    assert since.timestamp() == 10


async def test_one_of_several_engines_that_is_away_is_named_and_the_gateway_is_degraded(
    inspect: Inspect,
) -> None:
    one, two = FakeEngine(), FakeEngine(model="large")
    inspect = replace(inspect, engine=cast("Engine", VllmFleet(cast("Any", {"one": one, "two": two}))))
    assert (await vllm(inspect)).message == "serves tiny, large"
    two.away = True
    seen = await inspect.health()
    component = next(each for each in seen.components if each.name == "vllm")
    assert (component.status, component.message) == (Status.DEGRADED, "serves tiny; not there: two")
    assert seen.status is Status.DEGRADED
    one.away = True
    assert (await vllm(inspect)).status is Status.UNHEALTHY
