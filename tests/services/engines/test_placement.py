"""Which of several engines serves a session."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.domain.engine_health import GONE_AFTER
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import (
    ConcurrencyLimitError,
    EngineConnectionError,
    EngineResponseError,
    InvalidParameterError,
)
from cwm.ports.engine import Counters
from cwm.services.engines.placement import Place
from tests.eventually import eventually
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow


@dataclass
class Fleet:
    """Two engines of one model and one of another, on one cache, and a gateway in front of them."""

    one: FakeEngine
    two: FakeEngine
    other: FakeEngine
    cwm: Gateway

    async def engine_of(self, session_id: str) -> str | None:
        session = await self.cwm.registry.session("acme", session_id)
        assert session is not None
        return session.engine

    async def add(self, name: str, engine: FakeEngine) -> None:
        served = cast("VllmFleet", self.cwm.directory.engine)
        served.configure({**served.by_name, name: cast("Any", engine)})
        self.cwm.directory.forget()

    async def looked_at(self) -> None:
        for name in ("one", "two"):
            await self.cwm.directory.look_at(name, self.cwm.clock)

    async def lose(self, name: str, engine: FakeEngine) -> None:
        engine.away = True
        for _ in range(GONE_AFTER):
            await self.cwm.directory.look_at(name, self.cwm.clock)


@pytest.fixture
async def fleet(sqlite: Database) -> AsyncIterator[Fleet]:
    tier = FakeKvTier()
    one, two = FakeEngine(tier), FakeEngine(tier)
    other = FakeEngine(tier, model="large", root="/models/large", fingerprint="fp-3")
    engines: dict[str, Any] = {"one": one, "two": two, "other": other}
    cwm = gateway(sqlite, one, served=VllmFleet(cast("Any", engines)))
    yield Fleet(one, two, other, cwm)
    await cwm.settle()


def asked(engine: FakeEngine) -> int:
    """The turns that an engine was asked for."""
    return sum(request.max_tokens > 1 for request in engine.requests)


async def test_a_session_stays_on_the_engine_that_took_its_first_turn(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    first = await fleet.engine_of("s1")
    assert first == "one"
    fleet.cwm.directory.health["one"].running = 5
    await fleet.cwm.says("s1", "On.")
    await fleet.cwm.session("s2")
    assert (await fleet.engine_of("s1"), await fleet.engine_of("s2")) == ("one", "two")
    assert (asked(fleet.one), asked(fleet.two)) == (2, 1)


async def test_a_new_session_goes_to_the_engine_that_has_the_least_to_do_by_its_own_count(
    fleet: Fleet,
) -> None:
    fleet.one.busy, fleet.two.busy = (3, 0), (1, 4)
    await fleet.looked_at()
    await fleet.cwm.session("s1")
    fleet.two.busy = (1, 1)
    await fleet.looked_at()
    await fleet.cwm.session("s2")
    assert (await fleet.engine_of("s1"), await fleet.engine_of("s2")) == ("one", "two")


async def test_sessions_that_begin_at_once_are_spread_over_the_engines(fleet: Fleet) -> None:
    fleet.two.busy = (2, 0)
    await fleet.looked_at()
    names = [f"s{number}" for number in range(10)]
    for name in names:
        await fleet.cwm.open_session(ANN, name)
    await asyncio.gather(*(fleet.cwm.says(name, "Hello.") for name in names))
    assert Counter([await fleet.engine_of(name) for name in names]) == {"one": 6, "two": 4}
    assert [fleet.cwm.directory.health[name].load for name in ("one", "two")] == [0, 2]


async def test_engines_with_equal_work_take_turns(fleet: Fleet) -> None:
    for name in ("s1", "s2", "s3", "s4"):
        await fleet.cwm.session(name)
    assert [await fleet.engine_of(name) for name in ("s1", "s2", "s3", "s4")] == ["one", "two", "one", "two"]


async def test_an_engine_that_hangs_delays_no_look_at_the_others(fleet: Fleet) -> None:
    fleet.one.health_gate = asyncio.Event()
    fleet.two.away = True
    watch = asyncio.create_task(fleet.cwm.directory.watch(0.001, fleet.cwm.clock))
    health = fleet.cwm.directory.health
    await eventually(lambda: "two" in health and not health["two"].is_up)
    watch.cancel()
    assert health["one"].is_up


async def test_one_lost_answer_leaves_sessions_where_they_are(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    fleet.one.away = True
    await fleet.cwm.directory.look_at("one", fleet.cwm.clock)
    fleet.one.away = False
    await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "one"


async def test_a_session_without_an_engine_goes_where_most_of_its_prefix_is(fleet: Fleet) -> None:
    await fleet.cwm.window("w1")
    fleet.cwm.kv_tier.beside_engines.update(one=1, two=2)
    fleet.two.busy = (3, 0)
    await fleet.looked_at()
    assert (await fleet.cwm.thaw(ANN, "w1", "s2")).session.engine == "two"
    fleet.cwm.kv_tier.beside_engines["one"] = 2
    assert (await fleet.cwm.thaw(ANN, "w1", "s3")).session.engine == "one", "it has less to do"


async def test_a_session_whose_engine_is_gone_goes_where_most_of_its_prefix_is(fleet: Fleet) -> None:
    await fleet.add("three", FakeEngine(fleet.cwm.kv_tier))
    await fleet.cwm.session("s1")
    fleet.cwm.kv_tier.beside_engines.update(one=3, three=2)
    await fleet.lose("one", fleet.one)
    await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "three"


async def test_a_session_goes_to_the_engine_with_the_least_work_while_the_coordinator_does_not_answer(
    fleet: Fleet,
) -> None:
    await fleet.cwm.window("w1")
    tier = fleet.cwm.kv_tier
    tier.beside_engines.update(one=2)
    fleet.one.busy = (3, 0)
    await fleet.looked_at()
    tier.lookup_gate = asyncio.Event()
    before = tier.lookups
    for name in ("s2", "s3"):
        async with asyncio.timeout(10):
            assert (await fleet.cwm.thaw(ANN, "w1", name)).session.engine == "two"
    assert tier.lookups == before + 1, "the second did not wait for it"


async def test_what_has_no_prefix_and_what_has_its_engine_asks_nobody(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    session = await fleet.cwm.registry.session("acme", "s1")
    assert session is not None
    place = Place(cast("Any", None), fleet.cwm.directory, fleet.cwm.clock)
    before = (fleet.one.calls, fleet.cwm.kv_tier.lookups)
    for _ in range(100):
        with ExitStack() as turn:
            assert (await place(session, turn)).engine == "one"
    assert (fleet.one.calls, fleet.cwm.kv_tier.lookups) == before
    await fleet.cwm.session("s2")
    assert fleet.cwm.kv_tier.lookups == before[1]


async def test_a_full_engine_takes_nothing_and_when_all_are_full_the_turn_is_to_be_asked_again(
    fleet: Fleet,
) -> None:
    fleet.cwm.directory.rules = {name: EngineRules(max_running=1) for name in ("one", "two")}
    await fleet.cwm.session("s1")
    fleet.one.busy = (1, 0)
    await fleet.looked_at()
    await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "two", "its KV is below L1, too"
    fleet.two.busy = (0, 1)
    await fleet.looked_at()
    with pytest.raises(ConcurrencyLimitError) as full:
        await fleet.cwm.says("s1", "On.")
    assert (full.value.code, full.value.retry_after_seconds) == ("CWM-7002", 1)
    fleet.one.busy = (0, 0)
    await fleet.looked_at()
    await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "one"


async def test_a_turn_whose_patience_ends_goes_where_the_session_was_last(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    registry, clock = fleet.cwm.registry, fleet.cwm.clock
    session = await registry.session("acme", "s1")
    assert session is not None
    await registry.settle_session(session, "two", "one")
    moving = replace(session, moving_until=clock.now() + timedelta(minutes=1))
    place = Place(registry, fleet.cwm.directory, clock, patience_seconds=0.01)
    with ExitStack() as turn:
        assert (await place(moving, turn)).engine == "two"


async def test_a_limit_holds_for_turns_that_begin_at_once(fleet: Fleet) -> None:
    fleet.cwm.directory.rules = {"one": EngineRules(max_running=2), "two": EngineRules(max_running=1)}
    names = [f"s{number}" for number in range(5)]
    for name in names:
        await fleet.cwm.open_session(ANN, name)
    fleet.one.gate = fleet.two.gate = asyncio.Event()
    turns = [asyncio.create_task(fleet.cwm.says(name, "Hello.")) for name in names]
    await eventually(lambda: sum(turn.done() for turn in turns) == 2)
    fleet.one.gate.set()
    answers = await asyncio.gather(*turns, return_exceptions=True)
    assert sum(isinstance(answer, ConcurrencyLimitError) for answer in answers) == 2
    assert (asked(fleet.one), asked(fleet.two)) == (2, 1)


async def test_an_engine_of_some_tenants_serves_no_others(fleet: Fleet) -> None:
    fleet.cwm.directory.rules = {
        "one": EngineRules(tenants=frozenset({"umbrella"})),
        "other": EngineRules(tenants=frozenset({"umbrella"})),
    }
    await fleet.cwm.session("s1")
    assert await fleet.engine_of("s1") == "two"
    with pytest.raises(InvalidParameterError) as unserved:
        await fleet.cwm.open_session(ANN, "s2", "large")
    assert unserved.value.context["served"] == ["tiny"]
    umbrella = replace(ANN, tenant="umbrella")
    await fleet.cwm.open_session(umbrella, "s3", "large")
    assert (await fleet.cwm.directory.identity("tiny", tenant="umbrella")).engine == "one"
    assert (await fleet.cwm.directory.identity(tenant="acme")).engine == "two"
    assert fleet.one.requests == [
        request for request in fleet.one.requests if request.cache_salt == "cwm1-probe"
    ]


async def test_a_session_leaves_an_engine_that_serves_its_tenant_no_more(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    fleet.cwm.directory.rules = {"one": EngineRules(tenants=frozenset({"umbrella"}))}
    await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "two"


async def test_a_session_goes_on_elsewhere_with_its_kv_when_its_engine_is_gone(fleet: Fleet) -> None:
    context = await fleet.cwm.session("s1")
    await fleet.lose("one", fleet.one)
    answer = await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "two"
    assert answer.cached_tokens >= len(context) // fleet.cwm.kv_tier.chunk_size * fleet.cwm.kv_tier.chunk_size


async def test_each_model_is_served_by_its_own_engine(fleet: Fleet) -> None:
    await fleet.cwm.open_session(ANN, "s1", "large")
    await fleet.cwm.says("s1", "Hello.")
    assert await fleet.engine_of("s1") == "other"
    assert (asked(fleet.one), asked(fleet.two), asked(fleet.other)) == (0, 0, 1)
    with pytest.raises(InvalidParameterError):
        await fleet.cwm.open_session(ANN, "s2", "huge")


async def test_a_session_whose_engines_are_all_gone_is_to_be_asked_again_and_stays_where_it_was(
    fleet: Fleet,
) -> None:
    await fleet.cwm.session("s1")
    await fleet.lose("one", fleet.one)
    await fleet.lose("two", fleet.two)
    with pytest.raises(EngineConnectionError) as refused:
        await fleet.cwm.says("s1", "On.")
    assert refused.value.retryable
    with pytest.raises(EngineConnectionError):
        await fleet.cwm.directory.asked_for("tiny", ANN.tenant)
    with pytest.raises(InvalidParameterError):
        await fleet.cwm.directory.asked_for("huge", ANN.tenant)
    assert await fleet.engine_of("s1") == "one"


async def test_a_window_thaws_on_an_engine_that_is_there(fleet: Fleet) -> None:
    window = await fleet.cwm.window("w1")
    await fleet.lose("one", fleet.one)
    thawed = await fleet.cwm.thaw(ANN, "w1")
    assert thawed.session.engine == "two"
    assert thawed.receipt.tokens_restored >= window.block_count * fleet.cwm.kv_tier.chunk_size


async def test_an_engine_that_hangs_holds_up_no_turn_on_the_others(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    await fleet.cwm.session("s2")
    fleet.one.health_gate = asyncio.Event()
    async with asyncio.timeout(4):
        await fleet.cwm.says("s2", "On.")
    assert asked(fleet.two) == 2


class WithoutMetrics(FakeEngine):
    async def counters(self) -> Counters:
        raise EngineResponseError("vLLM's /metrics is not Prometheus text.")


async def test_an_engine_that_comes_later_and_tells_no_counts_takes_sessions_too(fleet: Fleet) -> None:
    late = WithoutMetrics(fleet.cwm.kv_tier, away=True)
    await fleet.add("late", late)
    await fleet.cwm.session("s1")
    assert await fleet.cwm.directory.candidates("tiny", "acme") == ("two", "one")
    await fleet.cwm.directory.look_at("late", fleet.cwm.clock)
    late.away = False
    await fleet.cwm.directory.look_at("late", fleet.cwm.clock)
    assert "late" in await fleet.cwm.directory.candidates("tiny", "acme")


async def test_a_session_stays_while_its_engine_alone_has_not_said_again_what_it_serves(fleet: Fleet) -> None:
    await fleet.cwm.session("s1")
    fleet.cwm.directory.forget()
    await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    await fleet.cwm.says("s1", "On.")
    assert await fleet.engine_of("s1") == "one"


async def test_an_engine_that_does_not_say_what_it_serves_holds_up_one_turn_and_takes_none(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.engines.roster._LOOK_SECONDS", 0.05)
    await fleet.cwm.session("s1")
    fleet.cwm.directory.forget()
    await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    fleet.one.health_gate = asyncio.Event()
    assert await fleet.cwm.directory.candidates("tiny", "acme") == ("two",)
    calls = fleet.one.calls
    assert await fleet.cwm.directory.candidates("tiny", "acme") == ("two",)
    assert fleet.one.calls == calls


async def test_what_asks_for_a_sessions_engine_gets_one_that_is_there_and_serves_its_tenant(
    fleet: Fleet,
) -> None:
    await fleet.cwm.session("s1")
    session = await fleet.cwm.registry.session("acme", "s1")
    assert session is not None
    directory = fleet.cwm.directory
    fleet.cwm.directory.health["one"].running = 5
    assert (await directory.of(session)).engine == "one"
    directory.lose("one")
    assert (await directory.of(session)).engine == "two"
    await directory.look_at("one", fleet.cwm.clock)
    assert (await directory.of(session)).engine == "one"
    directory.rules = {"one": EngineRules(tenants=frozenset({"umbrella"}))}
    assert (await directory.of(session)).engine == "two"


async def test_a_tenants_request_asks_no_engine_that_is_for_others(fleet: Fleet) -> None:
    fleet.cwm.directory.rules = {"one": EngineRules(tenants=frozenset({"umbrella"}))}
    fleet.two.away = fleet.other.away = True
    for _ in range(2):
        with pytest.raises(EngineConnectionError):
            await fleet.cwm.directory.asked_for("tiny", "acme")
    assert fleet.one.calls == 0


async def test_a_session_whose_engine_is_gone_stays_in_its_deployment_while_an_engine_of_it_is_there(
    fleet: Fleet,
) -> None:
    fleet.two.fingerprint, fleet.two.weights = "fp-2", "w-2"
    three = FakeEngine(fleet.cwm.kv_tier, busy=(9, 0))
    await fleet.add("three", three)
    await fleet.cwm.session("s1")
    first = await fleet.engine_of("s1")
    assert first == "one"
    await fleet.cwm.directory.look_at("three", fleet.cwm.clock)
    await fleet.lose("one", fleet.one)
    assert (await fleet.cwm.says("s1", " On.")).cached_tokens >= fleet.cwm.kv_tier.chunk_size
    assert await fleet.engine_of("s1") == "three", "although it has more to do"
    await fleet.lose("three", three)
    assert (await fleet.cwm.says("s1", " On.")).cached_tokens == 0
    assert await fleet.engine_of("s1") == "two"
    turn = await fleet.cwm.registry.current_turn("acme", "s1")
    assert turn is not None
    assert turn.missed == "another_engine"


async def test_a_freeze_of_a_session_whose_engine_is_gone_is_made_in_its_deployment(fleet: Fleet) -> None:
    fleet.two.fingerprint, fleet.two.weights = "fp-2", "w-2"
    await fleet.add("three", FakeEngine(fleet.cwm.kv_tier, busy=(9, 0)))
    await fleet.cwm.session("s1")
    await fleet.cwm.directory.look_at("three", fleet.cwm.clock)
    await fleet.lose("one", fleet.one)
    frozen = (await fleet.cwm.freeze(ANN, "s1", "w1")).window
    assert frozen.identity.fingerprint == "fp-1"


async def test_a_deployment_that_is_full_does_not_refuse_what_another_one_can_take(fleet: Fleet) -> None:
    fleet.two.fingerprint, fleet.two.weights = "fp-2", "w-2"
    fleet.cwm.directory.rules = {"one": EngineRules(max_running=1)}
    await fleet.cwm.session("s1")
    assert await fleet.engine_of("s1") == "one"
    fleet.one.busy = (1, 0)
    await fleet.looked_at()
    await fleet.cwm.says("s1", " On.")
    assert await fleet.engine_of("s1") == "two"
