"""Measures the event loop's lag: code that runs too long in the loop delays every request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_INTERVAL_SECONDS: Final = 0.5


async def watch_event_loop(
    report: Callable[[float], None], interval_seconds: float = _INTERVAL_SECONDS
) -> None:
    """Report at every interval by how many seconds the loop woke this task too late. Runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        report(max(0.0, loop.time() - due))
