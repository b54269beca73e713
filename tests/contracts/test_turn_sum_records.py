"""What every record of sums of turns owes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cwm.domain.errors import StorageWriteError
from cwm.domain.principal import Principal
from cwm.domain.turn_sums import TurnSum, hour_of, sum_of_turn
from cwm.ports.turn_sums import TurnSumRecords
from cwm.services.kv.turn_sums import TurnSums
from tests.contracts.nouns import NOW
from tests.services.replicas_of import HandClock

HOUR = hour_of(NOW)
EARLIER = HOUR - timedelta(hours=3)
ONE = TurnSum(1, 1000, 200, 800, 400)
ACME = Principal("acme", "ann")


async def test_gateways_that_add_at_once_lose_nothing(turn_sum_records: TurnSumRecords) -> None:
    added = {("acme", HOUR): ONE, ("bolt", HOUR): TurnSum(3, 9)}
    await asyncio.gather(*(turn_sum_records.add_turn_sums_of_every_tenant(added, EARLIER) for _ in range(8)))
    assert await turn_sum_records.turn_sums("acme", EARLIER) == {HOUR: TurnSum(8, 8000, 1600, 6400, 3200)}
    assert await turn_sum_records.turn_sums("bolt", EARLIER) == {HOUR: TurnSum(24, 72)}
    assert await turn_sum_records.turn_sums("other", EARLIER) == {}


async def test_sums_are_read_from_an_hour_on_and_go_when_they_are_old(
    turn_sum_records: TurnSumRecords,
) -> None:
    hours = {("acme", EARLIER): ONE, ("acme", HOUR): ONE}
    await turn_sum_records.add_turn_sums_of_every_tenant(hours, EARLIER)
    assert [*await turn_sum_records.turn_sums("acme", EARLIER)] == [EARLIER, HOUR]
    assert [*await turn_sum_records.turn_sums("acme", HOUR)] == [HOUR]
    await turn_sum_records.add_turn_sums_of_every_tenant({("bolt", HOUR): ONE}, HOUR)
    assert [*await turn_sum_records.turn_sums("acme", EARLIER)] == [HOUR]


async def test_sums_of_all_gateways_are_read_with_what_this_one_did_not_write_yet(
    turn_sum_records: TurnSumRecords,
) -> None:
    clock = HandClock(NOW.timestamp())
    here, there = TurnSums(turn_sum_records, clock), TurnSums(turn_sum_records, clock)
    there.add("acme", ONE)
    await there.write()
    here.add("acme", ONE)
    here.add("bolt", ONE)
    assert await here.of(ACME, EARLIER) == {HOUR: ONE + ONE}
    await here.write()
    await here.write()
    assert await there.of(ACME, EARLIER) == {HOUR: ONE + ONE}


async def test_what_cannot_be_written_is_written_later(turn_sum_records: TurnSumRecords) -> None:
    class Away:
        async def add_turn_sums_of_every_tenant(self, *_: object) -> None:
            raise StorageWriteError("away")

        turn_sums = turn_sum_records.turn_sums

    sums = TurnSums(Away(), HandClock(NOW.timestamp()))
    sums.add("acme", ONE)
    with pytest.raises(StorageWriteError):
        await sums.write()
    sums.records = turn_sum_records
    await sums.write()
    assert await turn_sum_records.turn_sums("acme", EARLIER) == {HOUR: ONE}


def test_the_time_saved_is_estimated_from_turns_that_had_to_compute() -> None:
    cold, warm = sum_of_turn(1000, 0, 500), sum_of_turn(4000, 3900, 90)
    assert (cold + warm).saved_ms == 1950
    assert warm.saved_ms is None
    assert sum_of_turn(1000, 0, None).saved_ms is None
