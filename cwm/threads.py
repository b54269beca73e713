"""Work beside the event loop: in threads, callers in turns.

A thread that reads or writes JSON competes with the event loop for the interpreter, and takes as large a share of it. So there are two, and one
tenant has one of them at most, however many requests it sends; its callers have it in turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

AT_ONCE_BYTES: Final = 64 * 1024
CALLER: Final[ContextVar[str]] = ContextVar("caller", default="")
"""Whose request the running task serves, the tenant's name and NUL in front; empty for the gateway's own work."""

_THREADS: Final = 2

T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """Run ``work`` on ``size`` bytes: in a thread above 64 KiB, else at once."""
    return work() if size <= AT_ONCE_BYTES else await in_thread(work)


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run ``work`` in a thread, as soon as the tenant has no other there and it is the caller's turn. It continues if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    turns = _turns_of_loops.setdefault(loop, _Turns())
    caller = CALLER.get()
    await turns.begin(caller)
    running = _pool.submit(copy_context().run, work, *arguments)

    def end(_: Future[Any]) -> None:
        # The loop is closed once the gateway has stopped.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(turns.end, caller)

    running.add_done_callback(end)
    return await asyncio.wrap_future(running)


@dataclass(slots=True)
class _Turns:
    """Which tenants have a thread now, and who waits for one: each caller's work in the order in which it came."""

    _running: set[str] = field(default_factory=set)
    _waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)

    async def begin(self, caller: str) -> None:
        if len(self._running) < _THREADS and _tenant(caller) not in self._running:
            self._running.add(_tenant(caller))
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.end(caller)
            raise

    def end(self, caller: str) -> None:
        self._running.discard(_tenant(caller))
        for other in list(self._waiting):
            if len(self._running) >= _THREADS:
                return
            if _tenant(other) not in self._running and self._next(other):
                self._running.add(_tenant(other))

    def _next(self, caller: str) -> bool:
        """Let the caller's first work that is still waited for begin; the caller is the last then."""
        turns = self._waiting.pop(caller)
        while turns:
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                if turns:
                    self._waiting[caller] = turns
                return True
        return False


def _tenant(caller: str) -> str:
    return caller.partition("\0")[0]


_pool: Final = ThreadPoolExecutor(_THREADS, "cwm-aside")
_turns_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()
