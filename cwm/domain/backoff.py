"""How long to wait before the next attempt at something that failed."""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 30.0


class Backoff:
    """Pauses that double from attempt to attempt, up to the longest one; each is shortened by up to half at random."""

    __slots__ = ("_first", "_longest", "_next")

    def __init__(
        self, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._first = self._next = first_seconds
        self._longest = longest_seconds

    def pause_seconds(self) -> float:
        """Before the next attempt, after another failure."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        # Jitter: replicas that lost a server together do not come back together.
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def reset(self) -> None:
        """An attempt went well."""
        self._next = self._first
