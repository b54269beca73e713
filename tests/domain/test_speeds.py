"""The cost model: what it learns from times, and what it never says."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.speeds import Observation, Run, Speeds, fit

TIERS = st.sampled_from(["cpu", "redis", "disk"])
COUNTS = st.integers(min_value=1, max_value=200_000)
TIMES = st.floats(min_value=0.01, max_value=1e6)
PREFILLS = st.builds(Observation, st.none(), st.just(0), st.integers(0, 100_000), COUNTS, TIMES)
LOADS = st.builds(
    lambda tier, loaded, tail, ms: Observation(tier, loaded, loaded, tail, ms),
    TIERS,
    COUNTS,
    st.integers(1, 256),
    TIMES,
)
RECORDS = st.lists(st.one_of(PREFILLS, LOADS), max_size=40).map(Speeds().plus)


def prefill(tokens: int, ms: float) -> Observation:
    return Observation(None, 0, 0, tokens, ms)


def load(tokens: int, ms: float, tier: str = "redis") -> Observation:
    return Observation(tier, tokens, tokens, 1, ms)


@given(RECORDS)
def test_a_record_survives_being_written_down(speeds: Speeds) -> None:
    assert Speeds.from_dict(json.loads(json.dumps(speeds.as_dict()))) == speeds


@given(RECORDS, st.lists(st.one_of(PREFILLS, LOADS), max_size=40))
def test_a_record_keeps_the_newest_few_of_each_kind_in_order(speeds: Speeds, new: list[Observation]) -> None:
    kept = speeds.plus(new).observations
    everything = [*speeds.observations, *new]
    for kind, count in Counter(o.kind for o in kept).items():
        assert [o for o in kept if o.kind == kind] == [o for o in everything if o.kind == kind][-count:]
        assert count == min(5, sum(o.kind == kind for o in everything))


@given(RECORDS, COUNTS, COUNTS)
def test_a_prediction_is_a_positive_time_or_nothing(speeds: Speeds, loaded: int, computed: int) -> None:
    pace = fit(speeds)
    cases: list[list[Run]] = [[], [("redis", loaded)], [("cpu", loaded), ("disk", computed)]]
    for runs in cases:
        ms = pace.ms(runs, sum(tokens for _, tokens in runs), computed)
        assert ms is None or (math.isfinite(ms) and ms >= 0)
        seen = {o.tier for o in speeds.observations}
        known = {tier for tier, _ in runs} <= seen if runs else bool(pace.prefills)
        assert (ms is not None) == known


@given(RECORDS)
def test_no_cost_is_ever_negative(speeds: Speeds) -> None:
    pace = fit(speeds)
    loading = [cost for costs in (pace.tiers or {}).values() for cost in costs]
    assert min(pace.base, pace.token, pace.pair, *loading) >= 0


@given(
    base=st.floats(1, 100),
    token=st.floats(0.01, 3),
    pair=st.floats(1e-6, 1e-3),
    size=st.integers(256, 8192),
)
def test_an_engine_that_follows_the_model_is_predicted_between_its_measurements(
    base: float, token: float, pair: float, size: int
) -> None:
    def takes(tokens: int) -> float:
        return base + token * tokens + pair * tokens * tokens / 2

    pace = fit(Speeds().plus([prefill(n, takes(n)) for n in (64, 256, 512, 1024, 2048, 4096, 8192)]))
    assert pace.ms([], 0, size) == pytest.approx(takes(size), rel=0.15)


@given(fixed=st.floats(5, 200), token=st.floats(0.005, 0.5), size=st.integers(256, 8192))
def test_a_tier_that_follows_the_model_is_predicted_between_its_measurements(
    fixed: float, token: float, size: int
) -> None:
    pace = fit(Speeds().plus([load(n, fixed + token * n) for n in (256, 1024, 4096, 8192)]))
    assert pace.ms([("redis", size)], size, 1) == pytest.approx(fixed + token * size, rel=0.15)
    assert pace.ms([("disk", size)], size, 1) is None


def test_one_request_that_was_held_up_changes_little() -> None:
    usual = [load(n, 50 + 0.05 * n) for n in (256, 512, 1024, 2048, 4096)]
    calm, disturbed = fit(Speeds().plus(usual)), fit(Speeds().plus([*usual, load(1000, 5000)]))
    for size in (256, 1024, 4096):
        before, after = (pace.ms([("redis", size)], size, 1) for pace in (calm, disturbed))
        assert before is not None
        assert after == pytest.approx(before, rel=0.5)


def test_a_tier_that_became_slower_is_believed_after_a_few_thaws() -> None:
    speeds = Speeds().plus([load(1000, 100)] * 5).plus([load(1000, 300)] * 5)
    assert fit(speeds).ms([("redis", 1000)], 1000, 1) == pytest.approx(300, rel=0.1)


def test_what_was_measured_of_the_very_size_counts_more_than_the_trend() -> None:
    odd_one = [prefill(512, 90.0)] * 5
    pace = fit(Speeds().plus([prefill(n, 0.1 * n) for n in (128, 256, 1024, 2048)]).plus(odd_one))
    assert pace.ms([], 0, 512) == pytest.approx(90, rel=0.15)


def test_times_that_are_none_are_not_recorded() -> None:
    assert Speeds().plus([prefill(1, ms) for ms in (0.0, -1.0, math.inf, math.nan)]) == Speeds()


@pytest.mark.parametrize("stored", [{}, {"observations": None}, {"observations": [["redis", 1]]}])
def test_a_record_in_another_form_counts_as_nothing(stored: dict[str, Any]) -> None:
    assert Speeds.from_dict(stored) == Speeds()
