"""What every record of an engine's noise owes."""

from __future__ import annotations

import asyncio

from cwm.domain.look import Distance
from cwm.domain.noise import Noise
from cwm.ports.noise import NoiseRecords
from tests.contracts.nouns import NOW

QUIET = Distance(16, 0, 0.0, 0.0)
LOUD = Distance(16, 4, 0.375, 0.0625, 33)


async def test_of_a_new_engine_no_noise_is_known(noise_records: NoiseRecords) -> None:
    assert await noise_records.noise("engine-1") == Noise()


async def test_pairs_come_back_in_the_order_they_were_added(noise_records: NoiseRecords) -> None:
    assert await noise_records.add_noise("engine-1", [LOUD], NOW) == Noise(((0.375, 0.25),))
    both = Noise(((0.375, 0.25), (0.0, 0.0)))
    assert await noise_records.add_noise("engine-1", [QUIET], NOW) == both
    assert await noise_records.noise("engine-1") == both


async def test_nothing_added_changes_nothing(noise_records: NoiseRecords) -> None:
    await noise_records.add_noise("engine-1", [LOUD], NOW)
    assert await noise_records.add_noise("engine-1", [], NOW) == Noise(((0.375, 0.25),))


async def test_engines_do_not_share_their_noise(noise_records: NoiseRecords) -> None:
    await noise_records.add_noise("engine-1", [LOUD], NOW)
    await noise_records.add_noise("engine-2", [QUIET], NOW)
    assert await noise_records.noise("engine-1") == Noise(((0.375, 0.25),))


async def test_the_latest_pairs_are_kept_up_to_a_bound(noise_records: NoiseRecords) -> None:
    await noise_records.add_noise("engine-1", [LOUD] * 10, NOW)
    noise = await noise_records.add_noise("engine-1", [QUIET] * 250, NOW)
    assert noise.pairs == ((0.375, 0.25),) * 6 + ((0.0, 0.0),) * 250


async def test_the_furthest_that_two_computations_were_apart_is_kept(noise_records: NoiseRecords) -> None:
    for computed in (0.125, 0.5, 0.25, None):
        await noise_records.add_noise("engine-1", [], NOW, computed)
    assert await noise_records.noise("engine-1") == Noise(computed=0.5)


async def test_what_gateways_add_at_once_is_all_kept(noise_records: NoiseRecords) -> None:
    pairs = [Distance(16, 1, number / 100, 0.0) for number in range(12)]
    await asyncio.gather(*(noise_records.add_noise("engine-1", [each], NOW) for each in pairs))
    kept = (await noise_records.noise("engine-1")).pairs
    assert sorted(largest for largest, _ in kept) == [number / 100 for number in range(12)]
