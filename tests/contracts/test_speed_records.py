"""What every record of engine speeds owes."""

from __future__ import annotations

import asyncio

from cwm.domain.speeds import Observation, Speeds
from cwm.ports.speeds import SpeedRecords
from tests.contracts.nouns import NOW

PREFILL = Observation(None, 0, 0, 1024, 512.25)
LOAD = Observation("redis", 960, 960, 64, 80.5)


async def test_an_engine_that_is_new_has_no_speeds(speed_records: SpeedRecords) -> None:
    assert await speed_records.speeds("engine-1") == Speeds()


async def test_observations_come_back_in_the_order_they_were_added(speed_records: SpeedRecords) -> None:
    assert await speed_records.add_speeds("engine-1", [PREFILL], NOW) == Speeds((PREFILL,))
    assert await speed_records.add_speeds("engine-1", [LOAD, PREFILL], NOW) == Speeds(
        (PREFILL, LOAD, PREFILL)
    )
    assert await speed_records.speeds("engine-1") == Speeds((PREFILL, LOAD, PREFILL))


async def test_engines_know_nothing_of_each_other(speed_records: SpeedRecords) -> None:
    await speed_records.add_speeds("engine-1", [PREFILL], NOW)
    await speed_records.add_speeds("engine-2", [LOAD], NOW)
    assert await speed_records.speeds("engine-1") == Speeds((PREFILL,))


async def test_only_the_newest_of_a_kind_are_kept(speed_records: SpeedRecords) -> None:
    for ms in range(1, 20):
        await speed_records.add_speeds("engine-1", [Observation(None, 0, 0, 1024, float(ms))], NOW)
    kept = await speed_records.speeds("engine-1")
    assert [o.ms for o in kept.observations] == [15.0, 16.0, 17.0, 18.0, 19.0]


async def test_what_is_added_at_once_is_all_kept(speed_records: SpeedRecords) -> None:
    """Each of another size, so that none makes room for another."""
    observations = [Observation(None, 0, 0, 2**power, 1.0) for power in range(12)]
    await asyncio.gather(*(speed_records.add_speeds("engine-1", [o], NOW) for o in observations))
    kept = await speed_records.speeds("engine-1")
    assert sorted(o.computed for o in kept.observations) == [2**power for power in range(12)]
