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
from cwm.domain.access import EVERY, AccessScope
from cwm.domain.engine_health import GONE_AFTER
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.ports.engine import Engine
from cwm.ports.kv_tier import KvTier
from cwm.services.engines.directory import EngineDirectory
from cwm.services.health.inspect import Component, Inspect, Status
from cwm.services.kv.reuse import Reuse
from tests.eventually import eventually
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import OPERATORS, HandClock


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
        OPERATORS,
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


def of_several(inspect: Inspect, engines: dict[str, FakeEngine]) -> tuple[Inspect, EngineDirectory]:
    served = cast("Engine", VllmFleet(cast("Any", engines)))
    directory = EngineDirectory(served, FakeKvTier(), b"a secret", "")
    return replace(inspect, engine=served, directory=directory), directory


async def lose(directory: EngineDirectory, name: str) -> None:
    for _ in range(GONE_AFTER):
        await directory.look_at(name, HandClock())


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
    inspect, directory = of_several(inspect, {"one": one, "two": two})
    assert (await vllm(inspect)).status is Status.UNHEALTHY, "none has answered so far"
    for name in ("one", "two"):
        await directory.look_at(name, inspect.clock)
    assert (await vllm(inspect)).message == "serves tiny, large"
    two.away = True
    await lose(directory, "two")
    seen = await inspect.health()
    component = next(each for each in seen.components if each.name == "vllm")
    assert (component.status, component.message) == (Status.DEGRADED, "serves tiny; not there: two")
    assert seen.status is Status.DEGRADED
    one.away = True
    await lose(directory, "one")
    assert (await vllm(inspect)).status is Status.UNHEALTHY


async def test_one_of_several_engines_that_hangs_holds_up_no_answer(inspect: Inspect) -> None:
    one, two = FakeEngine(), FakeEngine()
    inspect, directory = of_several(inspect, {"one": one, "two": two})
    for name in ("one", "two"):
        await directory.look_at(name, inspect.clock)
    two.health_gate = asyncio.Event()
    async with asyncio.timeout(2):
        assert (await inspect.health()).status is not Status.UNHEALTHY


async def test_each_of_several_engines_is_a_component_that_degrades_the_gateway(inspect: Inspect) -> None:
    two = FakeEngine()
    inspect, directory = of_several(inspect, {"one": FakeEngine(), "two": two})
    await inspect.registry.drain_engine("one", inspect.clock.now())
    two.away = True
    await lose(directory, "two")
    (first,) = (await inspect.health("engine:one")).components
    assert (first.status, first.message) == (Status.HEALTHY, "being drained since 1970-01-01 00:00 UTC")
    seen = await inspect.health("engine:two")
    assert seen.status is Status.DEGRADED
    assert seen.components[0].message == "vLLM does not answer."
    assert inspect.engines() == {"one": True, "two": False}


async def test_a_tenant_sees_its_own_engines_and_no_reason_and_an_administrator_all(inspect: Inspect) -> None:
    one, two, three = FakeEngine(), FakeEngine(model="secret"), FakeEngine()
    inspect, directory = of_several(inspect, {"one": one, "two": two, "three": three})
    directory.rules = {"two": EngineRules(tenants=frozenset({"umbrella"}))}
    for name in ("one", "two", "three"):
        await directory.look_at(name, inspect.clock)
    for engine, name in ((two, "two"), (three, "three")):
        engine.away = True
        await lose(directory, name)
    ann = Principal("acme", "ann", EVERY - {AccessScope.ADMIN})
    seen = {each.name: each.message for each in (await inspect.health(principal=ann)).components}
    assert (seen["engine:one"], seen["engine:three"]) == ("OK", "It does not answer as it should.")
    assert (seen["vllm"], "engine:two" in seen) == ("serves tiny; not there: three", False)
    with pytest.raises(InvalidParameterError) as refused:
        await inspect.health("engine:two", ann)
    assert "two" not in refused.value.message
    admin = {
        each.name: each.message
        for each in (await inspect.health(principal=replace(ann, scopes=EVERY))).components
    }
    assert admin["engine:two"] == "vLLM does not answer."


async def test_one_of_several_lmcache_servers_that_is_away_is_named_and_the_gateway_is_degraded(
    inspect: Inspect,
) -> None:
    engines = {"one": FakeEngine(), "two": FakeEngine()}

    class Beside(FakeKvTier):
        def beside(self, engine: str) -> Any:
            return engines[engine].kv_tier

    whole = Beside()
    whole.attached["root"] = None
    fleet = cast("Engine", VllmFleet(cast("Any", engines)))
    directory = EngineDirectory(fleet, cast("KvTier", whole), b"a secret", "")
    inspect = replace(inspect, engine=fleet, kv_tier=cast("KvTier", whole), directory=directory)

    async def kv_store() -> Component:
        return next(each for each in (await inspect.health()).components if each.name == "kv_store")

    assert (await kv_store()).status is Status.HEALTHY
    engines["two"].kv_tier.away = True
    component = await kv_store()
    assert (component.status, component.message) == (Status.DEGRADED, "No LMCache answers beside two.")
