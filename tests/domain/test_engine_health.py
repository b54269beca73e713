"""When an engine is taken for gone, and when for back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cwm.domain.engine_health import BACK_AFTER, GONE_AFTER, EngineHealth

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def test_an_engine_goes_after_failures_in_a_row_and_comes_back_after_answers_in_a_row() -> None:
    health = EngineHealth()
    assert [health.failed(NOW, "refused") for _ in range(GONE_AFTER)] == [False, False, True]
    assert (health.is_up, health.since, health.reason) == (False, NOW, "refused")
    assert [health.answered(NOW) for _ in range(BACK_AFTER)] == [False, True]
    assert (health.is_up, health.reason) == (True, "")


@pytest.mark.parametrize("gone", [False, True])
def test_an_engine_that_answers_every_other_time_stays_what_it_is(*, gone: bool) -> None:
    health = EngineHealth()
    for _ in range(GONE_AFTER if gone else 0):
        health.failed(NOW, "refused")
    for _ in range(20):
        assert not health.answered(NOW)
        assert not health.failed(NOW, "slow")
    assert health.is_up is not gone
