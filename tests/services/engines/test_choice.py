"""What the choice of an engine adds to a request of a session whose engine is there, in a large fleet."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

import pytest

from cwm.adapters.vllm.fleet import VllmFleet
from cwm.domain.session import Session
from cwm.ports.kv_tier import KvTier
from cwm.services.engines.directory import EngineDirectory
from cwm.services.engines.placement import Place
from tests.contracts.nouns import a_session
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.windows_of import Ticking

pytestmark = pytest.mark.slow

ENGINES, SESSIONS = 100, 10_000
LIMIT_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class LargeFleet:
    """``engines`` have answered a look; the sessions are spread over them."""

    engines: dict[str, FakeEngine]
    tier: FakeKvTier
    place: Place
    sessions: list[Session]

    async def choose(self, session: Session) -> str:
        with ExitStack() as turn:
            return (await self.place(session, turn)).engine

    def questions(self) -> int:
        """How often an engine or the coordinator was asked anything."""
        return (
            sum(engine.calls + len(engine.requests) for engine in self.engines.values()) + self.tier.lookups
        )


async def large_fleet(engines: int, sessions: int) -> LargeFleet:
    """A directory that knows its engines. There is no registry to ask."""
    tier = FakeKvTier()
    by_name = {f"engine-{number}": FakeEngine(tier) for number in range(engines)}
    served = VllmFleet(cast("Any", by_name))
    directory = EngineDirectory(served, cast("KvTier", tier), secret=b"a test's secret", weights_digest="")
    clock = Ticking()
    for name in by_name:
        await directory.look_at(name, clock)
        await directory.identity("tiny", name)
    names = list(by_name)
    spread = [
        replace(a_session(f"s{number}", model="tiny"), engine=names[number % engines])
        for number in range(sessions)
    ]
    random.Random(7).shuffle(spread)
    return LargeFleet(by_name, tier, Place(cast("Any", None), directory, clock), spread)


async def calls_of_a_choice(fleet: LargeFleet, session: Session) -> int:
    """The functions that it calls, those of the interpreter included."""
    calls: Counter[str] = Counter()

    def count(_frame: object, event: str, _argument: object) -> None:
        calls[event] += 1

    sys.setprofile(count)
    try:
        await fleet.choose(session)
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


async def test_a_known_session_stays_without_anybody_being_asked() -> None:
    fleet = await large_fleet(ENGINES, SESSIONS)
    before = fleet.questions()
    assert before > 0
    for session in fleet.sessions:
        assert await fleet.choose(session) == session.engine
    assert fleet.questions() == before
    assert {health.load for health in fleet.place.directory.health.values()} == {0}


async def test_the_work_of_a_choice_grows_with_the_engines_and_not_with_the_sessions() -> None:
    async def calls(engines: int, sessions: int) -> set[int]:
        fleet = await large_fleet(engines, sessions)
        return {await calls_of_a_choice(fleet, session) for session in fleet.sessions[-10:]}

    few, crowded, many = await calls(10, 10), await calls(10, SESSIONS), await calls(ENGINES, SESSIONS)
    assert crowded == few
    assert max(many) <= max(few) * ENGINES / 10


async def test_a_choice_takes_less_than_a_millisecond() -> None:
    """Of the time that this thread had the processor, so that other load does not count."""
    fleet = await large_fleet(ENGINES, SESSIONS)
    seconds = []
    for session in fleet.sessions:
        started = time.thread_time()
        await fleet.choose(session)
        seconds.append(time.thread_time() - started)
    assert median(seconds) < LIMIT_SECONDS
