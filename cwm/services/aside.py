"""Work that takes a processor for long is done in a thread, so that others are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

_IN_THREAD_BYTES: Final = 256 * 1024

T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """What ``work`` on ``size`` bytes returns; small work is done at once."""
    return work() if size <= _IN_THREAD_BYTES else await asyncio.to_thread(work)
