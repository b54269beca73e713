"""Work that nobody awaits ends before whoever settles it goes on."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from cwm.background import BackgroundTasks
from tests.eventually import eventually


@pytest.mark.slow
async def test_a_task_is_held_until_it_ends_although_nobody_else_holds_it() -> None:
    tasks, began, futures = BackgroundTasks(), asyncio.Event(), list[weakref.ref[asyncio.Future[None]]]()

    async def work() -> None:
        future = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        began.set()
        await future

    tasks.start(work())
    await began.wait()
    gc.collect()
    future = futures[0]()
    assert future is not None
    future.set_result(None)
    await tasks.settled()
    assert len(tasks) == 0


async def test_settled_waits_for_what_begins_meanwhile_too() -> None:
    tasks, is_waited_for, go_on, ended = BackgroundTasks(), asyncio.Event(), asyncio.Event(), list[str]()

    async def second() -> None:
        await go_on.wait()
        ended.append("second")

    async def first() -> None:
        await is_waited_for.wait()
        tasks.start(second())
        ended.append("first")

    tasks.start(first())
    settling = asyncio.create_task(tasks.settled())
    asyncio.get_running_loop().call_soon(is_waited_for.set)
    await eventually(lambda: ended == ["first"])
    asyncio.get_running_loop().call_soon(go_on.set)
    await settling
    assert ended == ["first", "second"]


async def test_a_task_that_fails_keeps_nobody_from_settling() -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise ValueError("it fails")

    failing = tasks.start(fail())
    await tasks.settled()
    with pytest.raises(ValueError, match="it fails"):
        failing.result()


async def test_what_is_not_awaited_to_its_end_is_cancelled_and_waited_for() -> None:
    tasks, cleaned, began = BackgroundTasks(), list[str](), asyncio.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(cleaned.append, "cleaned")

    tasks.start(work())
    await began.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await tasks.settled()
    assert cleaned == ["cleaned"]
    assert len(tasks) == 0


async def test_stop_lets_end_what_ends_in_time() -> None:
    tasks = BackgroundTasks()
    in_time = tasks.start(asyncio.to_thread(lambda: "ended"))
    await tasks.stop(after_seconds=30)
    assert in_time.result() == "ended"


async def test_stop_cancels_what_does_not_end_in_time() -> None:
    tasks = BackgroundTasks()
    late = tasks.start(asyncio.Event().wait())
    await tasks.stop(after_seconds=0.01)
    assert late.cancelled()
    assert len(tasks) == 0
