"""Work apart from whoever waits for it: in a thread where it takes long, to its end where it must not stop half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_IN_THREAD_BYTES: Final = 256 * 1024

T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """What ``work`` on ``size`` bytes returns; small work is done at once."""
    return work() if size <= _IN_THREAD_BYTES else await asyncio.to_thread(work)


_unfinished: Final[set[asyncio.Task[Any]]] = set()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns; it goes on when whoever waits for it is cancelled."""
    task = asyncio.create_task(work)
    _unfinished.add(task)
    task.add_done_callback(_finished)
    return await asyncio.shield(task)


def _finished(task: asyncio.Task[Any]) -> None:
    _unfinished.discard(task)
    if not task.cancelled():
        # Nobody may be there any more to be told.
        task.exception()
