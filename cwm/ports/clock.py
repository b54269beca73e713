"""Time, injected so that tests can control it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The current time, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; for measuring durations."""
