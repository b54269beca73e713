"""How long an upstream is left alone between attempts."""

from __future__ import annotations

import asyncio
import random
from typing import Final

FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 5.0


class Backoff:
    """Pauses that grow from attempt to attempt, up to 30 s."""

    def __init__(self) -> None:
        self._delay = FIRST_RETRY_SECONDS

    async def pause(self) -> None:
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST_RETRY_SECONDS)
        # Jitter: replicas that lost an upstream together do not come back together.
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def reset(self) -> None:
        """It had been well."""
        self._delay = FIRST_RETRY_SECONDS
