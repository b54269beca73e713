"""Whether an engine is there, by what was seen of it: a single lost answer does not make it go, nor a single one bring it back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

GONE_AFTER: Final = 3
BACK_AFTER: Final = 2


@dataclass(slots=True)
class EngineHealth:
    """``since``: when it went, or came back; None if it never went. ``running``: requests that it is working on."""

    is_up: bool = True
    since: datetime | None = None
    reason: str = ""
    running: float = 0.0
    _in_a_row: int = 0

    def answered(self, at: datetime) -> bool:
        """It answered. Whether it is back by that."""
        return self._seen(up=True, needed=BACK_AFTER, at=at, reason="")

    def failed(self, at: datetime, reason: str) -> bool:
        """It did not answer. Whether it is gone by that."""
        return self._seen(up=False, needed=GONE_AFTER, at=at, reason=reason)

    def _seen(self, *, up: bool, needed: int, at: datetime, reason: str) -> bool:
        if up is self.is_up:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self._in_a_row < needed:
            return False
        self.is_up, self.since, self.reason, self._in_a_row = up, at, reason, 0
        return True
