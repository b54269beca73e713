"""Whether an engine is there, by what was seen of it, and how much it has to do.

A single lost answer does not make an engine go, nor does a single one bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

GONE_AFTER: Final = 3
BACK_AFTER: Final = 2
_USUAL_ABSENCE_SECONDS: Final = 30.0
_NEXT_LOOK_SECONDS: Final = 2.0


@dataclass(slots=True)
class EngineHealth:
    """``since``: when it went, or came back; None if it never went. ``running`` and ``waiting``: requests by its own last count.

    ``has_answered``: it answered a look once. ``is_lost``: it broke a connection or took none, and has answered no look since. ``sent``: this gateway's requests to it that have not ended. ``last_sent``: the number, in their order over all engines, of the last one.
    """

    is_up: bool = True
    is_lost: bool = False
    has_answered: bool = False
    since: datetime | None = None
    reason: str = ""
    running: float = 0.0
    waiting: float = 0.0
    sent: int = 0
    last_sent: int = 0
    _away_since: datetime | None = None
    _absence_seconds: float = _USUAL_ABSENCE_SECONDS
    _sent_then: int = 0
    _in_a_row: int = 0

    @property
    def load(self) -> float:
        """The requests that it has: its own last count, and what this gateway has sent, or seen end, since."""
        return max(self.sent, self.running + self.waiting + self.sent - self._sent_then)

    def back_in(self, at: datetime) -> float:
        """Seconds until it is likely back, by how long it was away the last time; 0 if it is there.

        One that is overdue may take half as long again as it has taken so far.
        """
        if self._away_since is None:
            return _NEXT_LOOK_SECONDS if self.is_lost else 0.0
        seconds = (at - self._away_since).total_seconds()
        return max(self._absence_seconds - seconds, seconds / 2, _NEXT_LOOK_SECONDS)

    def counted(self, running: float, waiting: float) -> None:
        """It said how many requests it has."""
        self.running, self.waiting, self._sent_then = running, waiting, self.sent

    def answered(self, at: datetime) -> bool:
        """It answered. Whether it is back by that."""
        self.is_lost, self.has_answered = False, True
        is_back = self._seen(up=True, looks=BACK_AFTER, at=at, reason="")
        if is_back and self._away_since is not None:
            self._absence_seconds = (at - self._away_since).total_seconds()
        if self.is_up:
            self._away_since = None
        return is_back

    def failed(self, at: datetime, reason: str) -> bool:
        """It did not answer. Whether it is gone by that."""
        self._away_since = self._away_since or at
        return self._seen(up=False, looks=GONE_AFTER, at=at, reason=reason)

    def _seen(self, *, up: bool, looks: int, at: datetime, reason: str) -> bool:
        if up is self.is_up:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self._in_a_row < looks:
            return False
        self.is_up, self.since, self.reason, self._in_a_row = up, at, reason, 0
        return True
