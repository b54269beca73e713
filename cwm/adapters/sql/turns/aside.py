"""Packing and unpacking beside the event loop: in a thread, behind the transaction that read the rows or before the one that writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

_AT_ONCE: Final = 64 * 1024

T = TypeVar("T")


async def aside(size: int, work: Callable[[], T]) -> T:
    """Run ``work`` on ``size`` bytes: in a thread above 64 KiB, else at once."""
    return work() if size <= _AT_ONCE else await asyncio.to_thread(work)
