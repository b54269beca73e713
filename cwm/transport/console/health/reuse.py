"""Tokens reused against computed, today and in the last seven days, as bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import add

from cwm.domain.turn_sums import TurnSum

_DAYS = 7


@dataclass(frozen=True, slots=True)
class Bar:
    """An hour or a day; shares of the chart's height in per cent."""

    name: str
    of: TurnSum
    reused: float
    computed: float


@dataclass(frozen=True, slots=True)
class Period:
    """``name`` is a part of a heading; each bar is one ``step``."""

    name: str
    step: str
    total: TurnSum
    bars: tuple[Bar, ...]

    @property
    def words(self) -> str:
        """What the chart shows, for who does not see it."""
        spoken = [
            f"{bar.name}: {bar.of.cached:,} reused, {bar.of.computed:,} computed"
            for bar in self.bars
            if bar.of.prompt
        ]
        return f"Prompt tokens by {self.step}. {'; '.join(spoken) or 'none'}."


def first_hour(now: datetime) -> datetime:
    """Where the seven days begin: at midnight UTC, six days ago."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS - 1)


def periods(sums: Mapping[datetime, TurnSum], now: datetime) -> tuple[Period, Period]:
    """Today by hour, and seven days by day, both in UTC."""
    first = first_hour(now)
    midnight = first + timedelta(days=_DAYS - 1)
    hours = [midnight + timedelta(hours=hour) for hour in range(24)]
    by_hour = [(f"{hour:%H}:00", sums.get(hour, TurnSum())) for hour in hours]
    days = [first + timedelta(days=day) for day in range(_DAYS)]
    by_day = [
        (f"{day:%a %d %b}", _total(each for hour, each in sums.items() if hour.date() == day.date()))
        for day in days
    ]
    return _period("today", "hour", by_hour), _period("the last 7 days", "day", by_day)


def _period(name: str, step: str, sums: list[tuple[str, TurnSum]]) -> Period:
    most = max((each.prompt for _, each in sums), default=0) or 1
    bars = tuple(
        Bar(label, each, round(100 * each.cached / most, 2), round(100 * each.computed / most, 2))
        for label, each in sums
    )
    return Period(name, step, _total(each for _, each in sums), bars)


def _total(sums: Iterable[TurnSum]) -> TurnSum:
    return reduce(add, sums, TurnSum())
