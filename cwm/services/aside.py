"""Work that its caller does not interrupt: in a thread if it takes long, to its end if it must not stop half-way.

Work that continues after its request was cancelled keeps the request's concurrency places until it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from cwm.background import BackgroundTasks
from cwm.domain.errors import CwmError

_IN_THREAD_BYTES: Final = 64 * 1024
_CHAR_BYTES: Final = 4
_NODE_BYTES: Final = 64

T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """Run ``work`` on ``size`` bytes: in a thread above 64 KiB, else at once."""
    return work() if size <= _IN_THREAD_BYTES else await asyncio.to_thread(work)


async def aside_of(value: Any, work: Callable[[], T]) -> T:
    """The same on ``value``, which is as JSON has it. A character of its texts counts as four bytes: patterns are slow readers."""
    return await aside(_size(value), work)


def _size(value: Any) -> int:
    """Counts on until it is certain that the value is large."""
    size, unread = 0, [value]
    while unread and size <= _IN_THREAD_BYTES:
        each = unread.pop()
        if isinstance(each, str):
            size += _CHAR_BYTES * len(each)
        elif isinstance(each, Mapping):
            size += _NODE_BYTES * len(each)
            unread += each.values()
        elif isinstance(each, list | tuple):
            size += _NODE_BYTES * len(each)
            unread += each
    return size


_unfinished: Final = BackgroundTasks()
_log: Final = logging.getLogger("cwm.aside")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` and return its result. It continues if the caller is cancelled."""
    return await outlasting(_unfinished.start(work))


async def outlasting(task: asyncio.Task[T]) -> T:
    """Return the task's result. The task continues if the caller is cancelled."""
    if (hold := _hold.get()) is not None:
        hold.until(task)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_read)
        raise


def _read(task: asyncio.Task[Any]) -> None:
    """Read the result that nobody waits for; log what is no error of CWM's own."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, CwmError):
        _log.error("work failed after its caller had left", exc_info=error)


@contextmanager
def held_by_its_work(release: Callable[[], None]) -> Iterator[None]:
    """Call ``release`` after the body and all work that outlasts it. It may be called more than once."""
    hold = _Hold(release)
    token = _hold.set(hold)
    try:
        yield
    finally:
        _hold.reset(token)
        hold.let_go()


class _Hold:
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


_hold: Final[ContextVar[_Hold | None]] = ContextVar("held", default=None)
