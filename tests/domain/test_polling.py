"""Pauses between questions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.polling import pause_seconds


@given(ends_at=st.floats(0, 600), least=st.floats(0.001, 0.1))
def test_the_end_is_noticed_at_most_a_sixteenth_or_one_least_pause_late(ends_at: float, least: float) -> None:
    now = 0.0
    while now < ends_at:
        now += pause_seconds(now, least)
    assert now - ends_at <= max(least, ends_at / 16) + 1e-9
