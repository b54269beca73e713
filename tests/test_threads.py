"""Work beside the event loop: who has a thread, and who waits for whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cwm.threads import AT_ONCE_BYTES, CALLER, aside, in_thread
from tests.eventually import eventually

PATIENCE = 10.0


class Work:
    """What a caller wants done: it lasts until it may end."""

    def __init__(self, name: str, done: list[str]) -> None:
        self.name, self.done = name, done
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        self.may_end.wait(PATIENCE)
        self.done.append(self.name)
        return self.name


def asked(caller: str, work: Callable[[], str]) -> asyncio.Task[str]:
    async def ask() -> str:
        CALLER.set(caller)
        return await in_thread(work)

    return asyncio.create_task(ask())


@asynccontextmanager
async def busy(caller: str, done: list[str]) -> AsyncIterator[tuple[Work, asyncio.Task[str]]]:
    """The caller has a thread in the body, and has ended after it."""
    work = Work(f"{caller} 1", done)
    task = asked(caller, work)
    await eventually(work.began.is_set)
    try:
        yield work, task
    finally:
        work.may_end.set()
        assert await task == work.name


async def test_a_caller_has_one_thread_and_another_does_not_wait_for_it() -> None:
    done: list[str] = []
    async with busy("greedy", done):
        second = Work("greedy 2", done)
        waits = asked("greedy", second)
        other = Work("other 1", done)
        other.may_end.set()
        assert await asked("other", other) == "other 1"
        assert not second.began.is_set()
        second.may_end.set()
    assert await waits == "greedy 2"
    assert done == ["other 1", "greedy 1", "greedy 2"]


async def test_callers_of_one_tenant_share_a_thread_and_another_tenant_does_not_wait_for_them() -> None:
    done: list[str] = []
    async with busy("acme\0ann", done):
        second = Work("bob 1", done)
        waits = asked("acme\0bob", second)
        other = Work("eve 1", done)
        other.may_end.set()
        assert await asked("elsewhere\0eve", other) == "eve 1"
        assert not second.began.is_set()
        second.may_end.set()
    assert await waits == "bob 1"


async def test_callers_that_wait_take_turns() -> None:
    done: list[str] = []
    async with busy("a", done), busy("b", done):
        tasks = []
        for caller, number in (("c", 1), ("c", 2), ("c", 3), ("d", 1)):
            work = Work(f"{caller} {number}", done)
            work.may_end.set()
            tasks.append(asked(caller, work))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert done.index("d 1") < done.index("c 2") < done.index("c 3")


async def test_work_of_a_caller_that_left_before_its_turn_is_not_done() -> None:
    done: list[str] = []
    async with busy("a", done):
        left, stays = Work("a 2", done), Work("a 3", done)
        stays.may_end.set()
        tasks = [asked("a", left), asked("a", stays)]
        await asyncio.sleep(0)
        tasks[0].cancel()
    assert await tasks[1] == "a 3"
    assert done == ["a 1", "a 3"]


async def test_work_that_has_begun_ends_and_keeps_its_thread_until_then() -> None:
    done: list[str] = []
    first, second = Work("a 1", done), Work("a 2", done)
    task = asked("a", first)
    await eventually(first.began.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waits = asked("a", second)
    await asyncio.sleep(0)
    assert not second.began.is_set()
    first.may_end.set()
    second.may_end.set()
    assert await waits == "a 2"


async def test_small_work_is_done_at_once_in_the_event_loops_thread() -> None:
    here = threading.get_ident()
    assert await aside(AT_ONCE_BYTES, threading.get_ident) == here
    assert await aside(AT_ONCE_BYTES + 1, threading.get_ident) != here


async def test_an_error_of_the_work_is_the_callers_and_the_thread_is_free_again() -> None:
    def fail() -> str:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        await asked("a", fail)
    assert await asked("a", lambda: "next") == "next"
