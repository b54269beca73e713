"""Time, handed in so that tests can move it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Timezone-aware UTC."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; for durations."""
