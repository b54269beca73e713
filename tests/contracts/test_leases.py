"""What every lease keeper owes: one holder at a time, for as long as it says so."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.ports.leases import Leases
from tests.contracts.nouns import LATER, NOW


@pytest.fixture
def leases(database: Database) -> Leases:
    return SqlLeases(database)


async def test_a_lease_is_held_until_it_is_stale(leases: Leases) -> None:
    assert await leases.take("leader", "a", NOW, NOW - timedelta(seconds=30))
    assert not await leases.take("leader", "b", NOW, NOW - timedelta(seconds=30))
    assert await leases.take("leader", "a", LATER, LATER - timedelta(seconds=30))
    assert await leases.seen("leader") == ("a", LATER)
    much_later = LATER + timedelta(minutes=5)
    assert await leases.take("leader", "b", much_later, much_later - timedelta(seconds=30))
    assert await leases.seen("leader") == ("b", much_later)


async def test_of_many_at_once_one_gets_a_lease(leases: Leases) -> None:
    taken = await asyncio.gather(*(leases.take("leader", f"r{n}", NOW, NOW) for n in range(8)))
    assert sorted(taken) == [False] * 7 + [True]


async def test_a_lease_is_dropped_by_its_holder_alone(leases: Leases) -> None:
    await leases.take("leader", "a", NOW, NOW)
    await leases.drop("leader", "b")
    assert await leases.seen("leader") == ("a", NOW)
    await leases.drop("leader", "a")
    assert await leases.seen("leader") is None


async def test_leases_of_those_who_are_long_gone_are_forgotten(leases: Leases) -> None:
    await leases.take("replica:a", "a", NOW, NOW)
    await leases.take("replica:b", "b", LATER, NOW)
    await leases.forget(LATER)
    assert await leases.seen("replica:a") is None
    assert await leases.seen("replica:b") == ("b", LATER)
