"""Waiting for what another task, process or kernel brings about without an event to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_BOUND_SECONDS: Final = 60


async def eventually(holds: Callable[[], bool]) -> None:
    """TimeoutError where it does not hold within a minute."""
    async with asyncio.timeout(_BOUND_SECONDS):
        while not holds():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
