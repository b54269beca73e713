"""Work that its caller does not interrupt: in a thread if it takes long, to its end if it must not stop half-way.

Work that continues after its request was cancelled keeps the request's concurrency places until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from cwm.background import BackgroundTasks

_IN_THREAD_BYTES: Final = 256 * 1024

T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """Run ``work`` on ``size`` bytes: in a thread above 256 KiB, else at once."""
    return work() if size <= _IN_THREAD_BYTES else await asyncio.to_thread(work)


_unfinished: Final = BackgroundTasks()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` and return its result. It continues if the caller is cancelled."""
    task = _unfinished.start(work)
    # If the caller is gone, nobody else reads the exception.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await outlasting(task)


async def outlasting(task: asyncio.Task[T]) -> T:
    """Return the task's result. The task continues if the caller is cancelled."""
    if (held := _held.get()) is not None:
        held.until(task)
    return await asyncio.shield(task)


@contextmanager
def held_by_its_work(release: Callable[[], None]) -> Iterator[None]:
    """Call ``release`` after the body and all work that outlasts it. It may be called more than once."""
    held = _Held(release)
    token = _held.set(held)
    try:
        yield
    finally:
        _held.reset(token)
        held.let_go()


class _Held:
    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._holders = 1

    def until(self, task: asyncio.Task[Any]) -> None:
        self._holders += 1
        task.add_done_callback(lambda _: self.let_go())

    def let_go(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._release()


_held: Final[ContextVar[_Held | None]] = ContextVar("held", default=None)
