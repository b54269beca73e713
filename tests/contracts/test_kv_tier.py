"""The cache beside the engine, real and in memory: what it has, what it says that it has, and what pins are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.engine import Tier
from cwm.domain.errors import EngineConnectionError, EngineResponseError
from cwm.ports.kv_tier import Placement, Prefetched
from tests.contracts.engine_side import EngineSide

LOWER = frozenset({Tier.REDIS, Tier.DISK})


def everywhere(placements: list[Placement]) -> bool:
    return all(placement.tiers == {Tier.CPU, *LOWER} for placement in placements)


def nowhere(placements: list[Placement]) -> bool:
    return not any(placement.tiers for placement in placements)


async def test_it_says_what_it_is_and_which_model_stores_in_it(engine_side: EngineSide) -> None:
    facts = await engine_side.kv_tier.facts()
    assert facts is not None
    assert facts.hash_algorithm == "blake3"
    assert (facts.adapters, facts.bare_adapters) == (("valkey", "fs_native"), ())
    assert engine_side.kv_tier.lower_tiers() == facts.lower_tiers == (Tier.REDIS, Tier.DISK)
    assert [(a.root, a.world_size, a.block_size) for a in facts.attached] == [
        (engine_side.root, 1, engine_side.chunk)
    ]
    assert await engine_side.kv_tier.registered() == len(facts.instances) == 1
    assert await engine_side.kv_tier.coordinator_chunk_size() == facts.chunk_size


async def test_one_instance_is_asked_by_its_name(engine_side: EngineSide) -> None:
    key = await engine_side.stored(engine_side.ids(1))
    one = await engine_side.kv_tier.on(engine_side.facts.instances[0])
    assert (await one.prefetch(key)).complete
    with pytest.raises(EngineConnectionError):
        await engine_side.kv_tier.on("nobody")


async def test_chunks_are_named_by_all_tokens_before_them(engine_side: EngineSide) -> None:
    ids = engine_side.ids(2, 5)
    key = await engine_side.stored(ids)
    placements = await engine_side.placed(key, everywhere)
    hashes = chunk_hashes(ids, engine_side.chunk)
    assert [placement.hash for placement in placements] == hashes
    assert engine_side.kv_tier.expected_hashes(key) == hashes
    assert min(placement.size_bytes for placement in placements) > 0


async def test_a_prefix_shorter_than_a_chunk_is_nothing_to_store_pin_or_find(engine_side: EngineSide) -> None:
    key, tier = engine_side.key(engine_side.ids(0, engine_side.chunk - 1)), engine_side.kv_tier
    await engine_side.ask(key.token_ids)
    assert await tier.prefetch(key) == Prefetched(0, 0)
    assert (await tier.pin(key), await tier.unpin(key)) == (0, 0)
    assert await tier.lookup(key) == []
    assert tier.expected_hashes(key) == []


async def test_what_l1_has_is_of_no_tier_below_it_and_the_rest_comes_from_the_first_that_has_it(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(3)
    key = await engine_side.stored(ids)
    assert await engine_side.kv_tier.prefetch(key) == Prefetched(3, 3, {})
    await engine_side.kv_tier.drop_l1(key)
    first = engine_side.key(ids[: engine_side.chunk])
    assert await engine_side.kv_tier.prefetch(first) == Prefetched(1, 1, {Tier.REDIS: 1})
    assert await engine_side.kv_tier.prefetch(key) == Prefetched(3, 3, {Tier.REDIS: 2})


async def test_a_prefetch_counts_what_is_there_also_behind_a_gap(engine_side: EngineSide) -> None:
    ids = engine_side.ids(4)
    key = await engine_side.stored(ids)
    second = engine_side.kv_tier.expected_hashes(key)
    assert second is not None
    assert await engine_side.kv_tier.delete(key, second[1:2]) == 1
    back = await engine_side.kv_tier.prefetch(key)
    assert (back.found, back.total, back.complete) == (3, 4, False)
    await engine_side.faults.forget_gpu()
    assert (await engine_side.ask(ids)).loaded_tokens == engine_side.chunk


async def test_what_nobody_stored_is_not_found_and_no_error(engine_side: EngineSide) -> None:
    key = engine_side.key(engine_side.ids(2))
    assert await engine_side.kv_tier.prefetch(key) == Prefetched(0, 2, {})
    assert nowhere(await engine_side.kv_tier.lookup(key))


async def test_a_model_that_never_stored_can_be_pinned_but_not_prefetched(engine_side: EngineSide) -> None:
    key = engine_side.key(engine_side.ids(1), root="/models/other")
    assert (await engine_side.kv_tier.pin(key), await engine_side.kv_tier.unpin(key)) == (1, 1)
    with pytest.raises(EngineResponseError):
        await engine_side.kv_tier.prefetch(key)


async def test_the_directory_goes_on_about_chunks_that_are_lost_and_only_a_prefetch_tells(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(2)
    key = await engine_side.stored(ids)
    await engine_side.placed(key, everywhere)
    await engine_side.faults.lose(key)
    assert all(placement.tiers >= LOWER for placement in await engine_side.kv_tier.lookup(key))
    assert (await engine_side.kv_tier.prefetch(key)).found == 0


async def test_what_is_deleted_is_gone_from_every_tier_and_the_directory_hears_of_it(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(2)
    key = await engine_side.stored(ids)
    await engine_side.placed(key, everywhere)
    hashes = engine_side.kv_tier.expected_hashes(key)
    assert hashes is not None
    await engine_side.kv_tier.pin(key)
    assert await engine_side.kv_tier.delete(key, hashes) == 2
    await engine_side.placed(key, nowhere)
    assert await engine_side.kv_tier.prefetch(key) == Prefetched(0, 2, {})
    assert await engine_side.kv_tier.pins(key.cache_salt) == dict.fromkeys(hashes, 1), "pins do not protect"
    await engine_side.kv_tier.unpin(key)


async def test_what_was_deleted_is_stored_again_by_the_next_request_over_it(engine_side: EngineSide) -> None:
    ids = engine_side.ids(2)
    key = await engine_side.stored(ids)
    await engine_side.kv_tier.delete(key, engine_side.kv_tier.expected_hashes(key) or ())
    assert (await engine_side.ask(ids)).cached_tokens == 2 * engine_side.chunk, "the engine has it itself"
    await engine_side.settled(key, 2)


async def test_what_redis_alone_lacks_no_request_stores_there_but_a_refill_does(
    engine_side: EngineSide,
) -> None:
    ids, tier = engine_side.ids(2), engine_side.kv_tier
    key = await engine_side.stored(ids)
    await engine_side.faults.lose_in_redis(key)
    await engine_side.ask(ids)
    await engine_side.settled(key, 2)
    await tier.drop_l1(key)
    assert await tier.prefetch(key) == Prefetched(2, 2, {Tier.DISK: 2})
    await engine_side.faults.forget_gpu()
    await engine_side.ask(ids)
    await engine_side.settled(key, 2)
    await tier.drop_l1(key)
    assert await tier.prefetch(key) == Prefetched(2, 2, {Tier.DISK: 2})
    loaded: Mapping[Tier, int] | None = None
    async with asyncio.timeout(30):
        while loaded != {Tier.REDIS: 2}:
            await tier.refill(key)
            await engine_side.settled(key, 2)
            await tier.drop_l1(key)
            loaded = (await tier.prefetch(key)).loaded


async def test_a_refill_of_what_nobody_stored_is_no_error(engine_side: EngineSide) -> None:
    key = engine_side.key(engine_side.ids(2))
    await engine_side.kv_tier.refill(key)
    assert await engine_side.kv_tier.prefetch(key) == Prefetched(0, 2, {})
    await engine_side.kv_tier.refill(engine_side.key(engine_side.ids(0, engine_side.chunk - 1)))


async def test_pins_count_chunk_by_chunk_and_know_no_owner(engine_side: EngineSide) -> None:
    tier, ids = engine_side.kv_tier, engine_side.ids(3)
    longer, shorter = engine_side.key(ids), engine_side.key(ids[: 2 * engine_side.chunk])
    hashes = chunk_hashes(ids, engine_side.chunk)
    assert (await tier.pin(longer), await tier.pin(shorter)) == (3, 2), "although none of them exists"
    assert await tier.pins(engine_side.salt) == dict(zip(hashes, (2, 2, 1), strict=True))
    assert await tier.pinned_total(engine_side.salt) == 3
    for _ in range(2):
        assert await tier.unpin(longer) == 3
    assert await tier.pins(engine_side.salt) == {}, "those of the shorter one are gone as well"
    assert await tier.unpin(longer) == 3, "also where nothing is pinned"
    assert await tier.pinned_total(engine_side.salt) == 0


async def test_pins_are_of_one_salt(engine_side: EngineSide) -> None:
    key = engine_side.key(engine_side.ids(1))
    await engine_side.kv_tier.pin(key)
    assert await engine_side.kv_tier.pins(f"{engine_side.salt}-2") == {}
    await engine_side.kv_tier.unpin(key)


async def test_usage_tells_of_every_tier(engine_side: EngineSide) -> None:
    await engine_side.stored(engine_side.ids(1))
    usage = {use.tier: use.used_bytes for use in await engine_side.kv_tier.usage()}
    assert set(usage) == {Tier.CPU, Tier.REDIS, Tier.DISK}
    assert min(usage.values()) > 0


async def test_a_damaged_value_is_not_loaded_although_another_tier_has_it_and_computing_it_heals_it(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(3)
    key = await engine_side.stored(ids)
    expected = await engine_side.ask(ids, 4)
    await engine_side.faults.spoil(key, 1)
    await engine_side.faults.forget_gpu()
    answer = await engine_side.ask(ids, 4)
    assert answer.cached_tokens < 3 * engine_side.chunk
    assert answer.token_ids == expected.token_ids
    await engine_side.settled(key, 3)
    await engine_side.kv_tier.drop_l1(key)
    assert (await engine_side.kv_tier.prefetch(key)).complete


async def test_a_prefetch_of_a_damaged_value_is_not_complete_and_the_engines_own_copy_heals_it(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(3)
    key = await engine_side.stored(ids)
    await engine_side.faults.spoil(key, 1)
    assert not (await engine_side.kv_tier.prefetch(key)).complete
    assert (await engine_side.ask(ids)).cached_tokens == 3 * engine_side.chunk, "the engine has it itself"
    await engine_side.settled(key, 3)
    await engine_side.kv_tier.drop_l1(key)
    assert (await engine_side.kv_tier.prefetch(key)).complete


async def test_a_value_forged_with_the_key_comes_back_and_is_continued_otherwise(
    engine_side: EngineSide,
) -> None:
    ids = engine_side.ids(3)
    key = await engine_side.stored(ids)
    expected = await engine_side.engine.complete(engine_side.request(ids, 4, logprobs=5))
    await engine_side.faults.forge(key, 1, 0)
    assert (await engine_side.kv_tier.prefetch(key)).complete
    await engine_side.faults.forget_gpu()
    answer = await engine_side.engine.complete(engine_side.request(ids, 4, logprobs=5))
    assert answer.cached_tokens == 3 * engine_side.chunk
    assert answer.top != expected.top
