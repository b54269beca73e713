"""What the turns of a tenant cost in an hour, and what they did not cost because KV was reused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

KEPT: Final = timedelta(days=9)
"""How long sums are kept: seven whole days in every time zone."""
_MOSTLY: Final = 2
_ENOUGH: Final = 256


@dataclass(frozen=True, slots=True)
class TurnSum:
    """Counts in tokens. ``prompt`` of all ``turns`` and thaws, of which ``cached`` needed no computation.

    ``cold`` tokens were computed by turns that had little to reuse, whose first tokens came after ``cold_ms`` together.
    """

    turns: int = 0
    prompt: int = 0
    cached: int = 0
    cold: int = 0
    cold_ms: int = 0

    @property
    def computed(self) -> int:
        return self.prompt - self.cached

    @property
    def saved_ms(self) -> int | None:
        """An estimate: what ``cached`` tokens would have taken at the pace of those turns. None: no such turn."""
        return round(self.cached * self.cold_ms / self.cold) if self.cold and self.cold_ms else None

    def __add__(self, other: TurnSum) -> TurnSum:
        return TurnSum(
            self.turns + other.turns,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.cold + other.cold,
            self.cold_ms + other.cold_ms,
        )


def sum_of_turn(prompt: int, cached: int, first_token_ms: int | None) -> TurnSum:
    """One turn; its time counts if it computed at least 256 tokens and half of its prompt."""
    computed = prompt - cached
    if first_token_ms and computed >= _ENOUGH and computed * _MOSTLY >= prompt:
        return TurnSum(1, prompt, cached, computed, first_token_ms)
    return TurnSum(1, prompt, cached)


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
