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
from cwm.threads import AT_ONCE_BYTES, aside

_CHAR_BYTES: Final = 4
_NODE_BYTES: Final = 64

T = TypeVar("T")


async def aside_of(value: Any, work: Callable[[], T]) -> T:
    """The same on ``value``, which is as JSON has it. A character of its texts counts as four bytes: patterns are slow readers."""
    return await aside(_size(value), work)


def _size(value: Any) -> int:
    """Counts on until it is certain that the value is large."""
    size, unread = 0, [value]
    while unread and size <= AT_ONCE_BYTES:
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
    held_until(task)
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


def held_until(task: asyncio.Task[Any]) -> None:
    """Let what the running request holds be held until ``task`` has ended, too."""
    if (hold := _hold.get()) is not None:
        hold.until(task)


@contextmanager
def held_by_its_work(release: Callable[[], None]) -> Iterator[Hold]:
    """Call ``release`` after the body and all work that outlasts it; it may be called more than once.

    What is held around the body is held as long.
    """
    hold = Hold(release, _hold.get())
    token = _hold.set(hold)
    try:
        yield hold
    finally:
        _hold.reset(token)
        hold.let_go()


class Hold:
    """Releases what a request holds when the last of its holders has let go."""

    def __init__(self, release: Callable[[], None], outer: Hold | None = None) -> None:
        self._release = release
        self._outer = outer
        self._holders = 1

    def shared(self) -> Callable[[], None]:
        """Hold it once more; returns what lets go."""
        self._holders += 1
        has_let_go = False

        def let_go() -> None:
            nonlocal has_let_go
            if not has_let_go:
                has_let_go = True
                self.let_go()

        return let_go

    def until(self, task: asyncio.Task[Any]) -> None:
        self._holders += 1
        task.add_done_callback(lambda _: self.let_go())
        if self._outer is not None:
            self._outer.until(task)

    def let_go(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._release()


_hold: Final[ContextVar[Hold | None]] = ContextVar("held", default=None)
