"""Tasks in the background: nobody awaits them, and a shutdown waits until they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Holds each task until it ends: the event loop alone would let it be collected half-way."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The task that does ``work``: a caller who is cancelled while it waits for it should shield it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Returns when all have ended, those that begin meanwhile too. When cancelled, it cancels them and waits for that."""
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self, after_seconds: float = 0.0) -> None:
        """Let them run for so long, cancel those that have not ended, and wait for that."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=after_seconds)
        await cancel_and_wait(*self._tasks)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them and wait until they have ended, however they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
