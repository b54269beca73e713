"""What every lease keeper owes: one holder at a time, for as long as it says so."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, tzinfo

import pytest

from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.leases import SqlLeases
from cwm.ports.leases import Leases
from tests.contracts.nouns import LATER, NOW
from tests.services.replicas_of import HandClock

STALE = timedelta(seconds=30)


class Behind(datetime):
    """The clock of a machine that goes a minute after everybody else's."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) - timedelta(minutes=1)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(NOW.timestamp())


@pytest.fixture
def leases(database: Database, clock: HandClock) -> Leases:
    return SqlLeases(database, clock)


async def test_a_lease_is_held_until_it_is_stale(leases: Leases, clock: HandClock) -> None:
    assert await leases.take("leader", "a", STALE)
    clock.seconds += 29
    assert not await leases.take("leader", "b", STALE)
    assert await leases.take("leader", "a", STALE)
    clock.seconds += 30
    assert not await leases.take("leader", "b", STALE)
    held = await leases.seen("leader")
    assert held is not None
    assert (held.holder, held.seen_at, held.age) == ("a", clock.now() - STALE, STALE)
    clock.seconds += 1
    assert await leases.take("leader", "b", STALE)
    held = await leases.seen("leader")
    assert held is not None
    assert (held.holder, held.seen_at, held.age) == ("b", clock.now(), timedelta(0))


async def test_of_many_at_once_one_gets_a_lease(leases: Leases) -> None:
    taken = await asyncio.gather(*(leases.take("leader", f"r{n}", STALE) for n in range(8)))
    assert sorted(taken) == [False] * 7 + [True]


async def test_a_lease_is_dropped_by_its_holder_alone(leases: Leases) -> None:
    await leases.take("leader", "a", STALE)
    await leases.drop("leader", "b")
    assert await leases.seen("leader") is not None
    await leases.drop("leader", "a")
    assert await leases.seen("leader") is None


async def test_leases_of_those_who_are_long_gone_are_forgotten(leases: Leases, clock: HandClock) -> None:
    await leases.take("replica:a", "a", STALE)
    clock.seconds += 60
    await leases.take("replica:b", "b", STALE)
    await leases.forget(STALE)
    assert await leases.seen("replica:a") is None
    assert await leases.seen("replica:b") is not None


async def test_of_moments_that_several_note_the_latest_stays(leases: Leases) -> None:
    for holder, at in (("a", NOW), ("b", LATER), ("a", NOW)):
        await leases.note("loss", holder, at)
    noted = await leases.seen("loss")
    assert noted is not None
    assert (noted.holder, noted.seen_at) == ("b", LATER)


async def test_gateways_whose_clocks_differ_agree_on_who_holds_a_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(postgres_url)
    late, right = SqlLeases(database), SqlLeases(database)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("cwm.adapters.sql.clock.datetime", Behind)
            assert await late.take("leader", "late", STALE)
        await right.forget(STALE)
        assert not await right.take("leader", "right", STALE)
        held = await right.seen("leader")
    finally:
        await database.dispose()
    assert held is not None
    assert (held.holder, held.age < STALE) == ("late", True)
