"""Which gateways live and which one leads, over a real registry and with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.services.replicas import Replicas
from tests.contracts.nouns import NOW


@dataclass
class Clock:
    at: datetime = NOW

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def pass_by(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Fleet:
    """Replicas of one registry; of ``dead`` ones this machine knows that they are gone, of others nothing."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._leases = SqlLeases(database, clock)
        self.dead: set[str] = set()

    def replica(self, name: str) -> Replicas:
        return Replicas(self._leases, name, lambda holder: True if holder in self.dead else None)


@pytest.fixture
def fleet(database: Database, clock: Clock) -> Fleet:
    return Fleet(database, clock)


async def test_a_replica_is_gone_when_it_was_not_seen_for_long(fleet: Fleet, clock: Clock) -> None:
    a, b = fleet.replica("a"), fleet.replica("b")
    await a.beat()
    assert not await b.gone("a")
    clock.pass_by(29)
    assert not await b.gone("a")
    await a.beat()
    clock.pass_by(29)
    assert not await b.gone("a")
    clock.pass_by(2)
    assert await b.gone("a")
    assert not await a.gone("a")


async def test_a_replica_that_the_machine_knows_to_have_ended_is_gone_at_once(fleet: Fleet) -> None:
    await fleet.replica("a").beat()
    fleet.dead.add("a")
    assert await fleet.replica("b").gone("a")


async def test_nobody_and_who_was_never_seen_are_gone(fleet: Fleet) -> None:
    assert await fleet.replica("a").gone("")
    assert await fleet.replica("a").gone("never")


async def test_one_leads_until_it_is_gone(fleet: Fleet, clock: Clock) -> None:
    a, b = fleet.replica("a"), fleet.replica("b")
    assert await a.lead()
    assert not await b.lead()
    assert await a.lead()
    clock.pass_by(31)
    assert await b.lead()
    assert not await a.lead()
    fleet.dead.add("b")
    assert await a.lead()


async def test_a_replica_that_leaves_makes_room_at_once(fleet: Fleet) -> None:
    a, b = fleet.replica("a"), fleet.replica("b")
    await a.beat()
    await a.lead()
    await a.leave()
    assert await b.gone("a")
    assert await b.lead()


async def test_only_one_looks_at_a_time(fleet: Fleet) -> None:
    a, b = fleet.replica("a"), fleet.replica("b")
    async with a.alone() as first:
        assert first
        async with b.alone() as second:
            assert not second
    async with b.alone() as third:
        assert third


async def test_a_replica_looks_once_at_a_time_itself(fleet: Fleet) -> None:
    a, b = fleet.replica("a"), fleet.replica("b")
    looks: list[str] = []

    async def look_again() -> None:
        async with a.alone() as second:
            assert second
            looks.append("second")
            async with b.alone() as other:
                assert not other

    async with a.alone():
        again = asyncio.create_task(look_again())
        async with b.alone() as other:
            assert not other
        for _ in range(20):
            await a.beat()
        looks.append("first")
    await again
    assert looks == ["first", "second"]
