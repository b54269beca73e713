"""How numbers, times, reasons and odd characters are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cwm.domain.clients.habit import Habit
from cwm.domain.divergence import Cause, Miss
from cwm.transport.console import wording

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_every_reason_has_words() -> None:
    assert set(wording.CAUSES) == {each.value for each in Cause}
    assert set(wording.HABITS) == {each.value for each in Habit}
    assert set(wording.MISSES) == {each.value for each in Miss}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2, "just now"),
        (59, "59 s ago"),
        (3 * 3600 + 5, "3 h ago"),
        (86_400, "2026-02-28 12:00 UTC"),
        (-7200, "in 2 h"),
        (-10 * 86_400, "2026-03-11 12:00 UTC"),
    ],
)
def test_a_time_within_a_day_is_how_long_ago_it_was(seconds: int, words: str) -> None:
    assert wording.ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_counts_and_durations_have_one_notation() -> None:
    assert wording.number(1_234_567) == "1,234,567"
    assert [wording.took(ms) for ms in (84, 2350)] == ["84 ms", "2.4 s"]
    assert wording.percent(999, 1000) == 99
    assert wording.percent(0, 0) == 0
