"""Slots of costly queries: which tenant gets one, and how long anybody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from cwm.domain.errors import ConcurrencyLimitError
from cwm.services.results.query_slots import QuerySlots


@asynccontextmanager
async def busy(slots: QuerySlots, tenant: str, count: int) -> AsyncIterator[list[asyncio.Event]]:
    """``count`` queries of a tenant, each of which runs until its event is set."""
    ends = [asyncio.Event() for _ in range(count)]

    async def run(end: asyncio.Event) -> None:
        async with slots.slot(tenant):
            await end.wait()

    queries = [asyncio.create_task(run(end)) for end in ends]
    await asyncio.sleep(0)
    try:
        yield ends
    finally:
        for query in queries:
            query.cancel()
        await asyncio.wait(queries)


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_a_tenant_with_many_queries_does_not_keep_another_waiting(count: int) -> None:
    slots = QuerySlots(count, wait_seconds=30)
    async with busy(slots, "b", 16), asyncio.timeout(1), slots.slot("a"):
        pass


async def test_a_free_slot_goes_to_the_tenants_in_turn() -> None:
    slots, order = QuerySlots(1, wait_seconds=30), list[str]()

    async def run(tenant: str) -> None:
        async with slots.slot(tenant):
            order.append(tenant)

    async with busy(slots, "b", 1) as (end,):
        waiting = [asyncio.create_task(run(tenant)) for tenant in ("b", "b", "b", "a", "c", "a")]
        await asyncio.sleep(0)
        end.set()
        await asyncio.gather(*waiting)
    assert order == ["b", "a", "c", "b", "a", "b"]


async def test_a_query_that_waited_long_enough_is_told_when_to_come_again() -> None:
    slots = QuerySlots(2, wait_seconds=0.05)
    async with busy(slots, "b", 1):
        with pytest.raises(ConcurrencyLimitError) as refused:
            async with slots.slot("b"):
                pass
    told = refused.value.as_dict()
    assert (told["code"], told["retryable"], told["retry_after_seconds"]) == ("CWM-7002", True, 1)
    async with asyncio.timeout(1), slots.slot("b"):
        pass


async def test_of_one_tenant_at_most_sixteen_wait() -> None:
    slots = QuerySlots(2, wait_seconds=30)
    async with busy(slots, "b", 17):
        with pytest.raises(ConcurrencyLimitError):
            async with slots.slot("b"):
                pass
        async with asyncio.timeout(1), slots.slot("a"):
            pass


async def test_a_query_that_is_given_up_leaves_its_slot_and_its_place_in_the_queue() -> None:
    slots = QuerySlots(2, wait_seconds=30)
    async with AsyncExitStack() as stack:
        (first,) = await stack.enter_async_context(busy(slots, "b", 1))
        async with busy(slots, "b", 3):
            pass
        async with busy(slots, "b", 1) as (_,):
            # It gets its turn and is given up at once.
            first.set()
            await asyncio.sleep(0)
        async with asyncio.timeout(1), slots.slot("b"), slots.slot("a"):
            pass
