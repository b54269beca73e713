"""An engine that answers looks late now and then stays what it is: away or there."""

from __future__ import annotations

import asyncio

import pytest

from cwm.domain.engine_health import BACK_AFTER, GONE_AFTER
from tests.services.fleet_of import Fleet, turns_of

ROUNDS = 10


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cwm.services.engines.roster._LOOK_SECONDS", 0.01)


async def look(fleet: Fleet, *, late: bool, times: int = 1) -> None:
    """Look at the first engine, which answers in time or too late."""
    fleet.one.health_gate = asyncio.Event() if late else None
    for _ in range(times):
        await fleet.cwm.directory.look_at("one", fleet.cwm.clock)
    fleet.one.health_gate = None


async def test_sessions_stay_on_an_engine_that_is_late_less_often_than_it_takes_to_be_gone(
    fleet: Fleet,
) -> None:
    await fleet.begins("s1")
    for _ in range(ROUNDS):
        await look(fleet, late=True, times=GONE_AFTER - 1)
        await fleet.cwm.says("s1", " On.")
        await look(fleet, late=False)
    seen = fleet.cwm.directory.health["one"]
    assert (seen.is_up, seen.since) == (True, None)
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (1 + ROUNDS, 0)


async def test_an_engine_that_is_gone_and_in_time_now_and_then_gets_no_session_until_it_is_back(
    fleet: Fleet,
) -> None:
    await fleet.begins("s1")
    await look(fleet, late=True, times=GONE_AFTER)
    seen = fleet.cwm.directory.health["one"]
    went = seen.since
    for number in range(ROUNDS):
        await look(fleet, late=False, times=BACK_AFTER - 1)
        await fleet.cwm.says("s1", " On.")
        await fleet.cwm.session(f"new{number}")
        await look(fleet, late=True)
    assert (seen.is_up, seen.since, seen.reason) == (False, went, "It did not answer within 0.01 s.")
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (1, 2 * ROUNDS)
    await look(fleet, late=False, times=BACK_AFTER)
    assert seen.is_up
    await fleet.cwm.says("s1", " On.")
    assert await fleet.engine_of("s1") == "two", "it does not go back and forth"
