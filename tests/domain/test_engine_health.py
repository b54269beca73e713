"""When an engine is taken for gone, and when for back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cwm.domain.engine_health import BACK_AFTER, GONE_AFTER, EngineHealth

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def test_an_engine_goes_after_failures_in_a_row_and_comes_back_after_answers_in_a_row() -> None:
    health = EngineHealth()
    assert [health.failed(NOW, "refused") for _ in range(GONE_AFTER)] == [False, False, True]
    assert (health.is_up, health.since, health.reason) == (False, NOW, "refused")
    assert [health.answered(NOW) for _ in range(BACK_AFTER)] == [False, True]
    assert (health.is_up, health.reason) == (True, "")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def gone_from(health: EngineHealth, seconds: float) -> None:
    for _ in range(GONE_AFTER):
        health.failed(later(seconds), "refused")


def test_an_engine_is_likely_back_after_as_long_as_it_was_away_the_last_time() -> None:
    health = EngineHealth()
    assert health.back_in(NOW) == 0
    gone_from(health, 0)
    for _ in range(BACK_AFTER):
        health.answered(later(200))
    assert health.back_in(later(201)) == 0
    gone_from(health, 300)
    assert health.back_in(later(310)) == 190
    # It is overdue.
    assert health.back_in(later(600)) == 150


def test_an_engine_that_missed_one_look_was_not_away() -> None:
    health = EngineHealth()
    health.failed(NOW, "slow")
    first = health.back_in(later(1))
    health.answered(later(2))
    assert health.back_in(later(2)) == 0
    gone_from(health, 10)
    assert health.back_in(later(11)) == first > 10


@pytest.mark.parametrize("gone", [False, True])
def test_an_engine_that_answers_every_other_time_stays_what_it_is(*, gone: bool) -> None:
    health = EngineHealth()
    for _ in range(GONE_AFTER if gone else 0):
        health.failed(NOW, "refused")
    for _ in range(20):
        assert not health.answered(NOW)
        assert not health.failed(NOW, "slow")
    assert health.is_up is not gone
