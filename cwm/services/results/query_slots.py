"""Bounds how many costly queries run at once, so that those of one tenant cannot keep another's waiting."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cwm.domain.errors import ConcurrencyLimitError

_MOST_WAITING: Final = 16


class QuerySlots:
    """``count`` queries run at once; one tenant's leave a slot to the others. Free slots go to tenants in turn."""

    def __init__(self, count: int, wait_seconds: float) -> None:
        self._count = count
        self._most_of_one = max(1, count - 1)
        self._wait_seconds = wait_seconds
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot during the body. CWM-7002 after ``wait_seconds``, or at once if 16 queries of the tenant wait."""
        if self._has_room(tenant):
            self._running[tenant] += 1
        else:
            await self._turn(tenant)
        try:
            yield
        finally:
            self._release(tenant)

    def _has_room(self, tenant: str) -> bool:
        return self._running.total() < self._count and self._running[tenant] < self._most_of_one

    async def _turn(self, tenant: str) -> None:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= _MOST_WAITING:
            raise self._busy()
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._release(tenant)
            else:
                self._leave(tenant, turn)
            if isinstance(error, TimeoutError):
                raise self._busy() from None
            raise

    def _release(self, tenant: str) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        while (following := next(filter(self._has_room, self._waiting), None)) is not None:
            queue = self._waiting.pop(following)
            turn = queue.popleft()
            # Whoever waited may have been cancelled just now.
            if not turn.done():
                turn.set_result(None)
                self._running[following] += 1
            if queue:
                self._waiting[following] = queue

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant, deque())
        if turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[tenant]

    def _busy(self) -> ConcurrencyLimitError:
        return ConcurrencyLimitError(
            f"Too many queries run: {self._most_of_one} of each tenant at once. Try again, or ask for less at a time.",
            retry_after=self._wait_seconds,
            limit=self._most_of_one,
            level="tenant",
        )
