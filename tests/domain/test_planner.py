"""Load, recompute or load part: the choice, by what is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.planner import Choice, Decision, Plan, decide, obvious, trial
from cwm.domain.speeds import Observation, Pace, Run, Speeds, fit

SIZES = (256, 512, 1024, 2048, 4096, 8192)
TIERS = ("cpu", "redis", "disk")
COST = st.floats(0.001, 2.0)
RUNS = st.lists(
    st.tuples(st.sampled_from(TIERS), st.integers(1, 60).map(lambda n: n * 64)), min_size=1, max_size=4
)


def measured(
    recompute: float, load: float, *, fixed: float = 20.0, pair: float = 0.0, tiers: tuple[str, ...] = TIERS
) -> Pace:
    """An engine whose prefills and loads of every size were measured often enough; costs in ms a token."""
    prefills = [Observation(None, 0, 0, n, fixed + recompute * n + pair * n * n / 2) for n in SIZES]
    loads = [Observation(tier, n, n, 1, 2 * fixed + load * n) for n in SIZES for tier in tiers]
    return fit(Speeds().plus([*prefills, *loads] * 3))


@given(COST, COST, st.sampled_from(SIZES), st.sampled_from(TIERS))
def test_the_choice_is_never_predicted_to_be_much_slower_than_the_better_one(
    recompute: float, load: float, size: int, tier: str
) -> None:
    plan = decide(measured(recompute, load), size + 1, [(tier, size)], size)
    assert plan.predicted_ms is not None
    assert plan.load_ms is not None
    assert plan.recompute_ms is not None
    assert plan.predicted_ms <= min(plan.load_ms, plan.recompute_ms) / 0.95
    assert plan.decision is not Decision.PARTIAL


@given(COST, st.floats(0, 1e-3), RUNS, st.integers(0, 63), st.data())
def test_no_cut_inside_a_tier_is_predicted_to_beat_the_cuts_that_are_looked_at(
    recompute: float, pair: float, runs: list[Run], tail: int, data: st.DataObject
) -> None:
    bare = measured(recompute, 0.05, pair=pair)
    pace = Pace(Speeds(bare.speeds.observations), bare.base, bare.token, bare.pair, bare.tiers)
    assert pace.tiers is not None
    count = sum(tokens for _, tokens in runs) + tail + 1
    inside = data.draw(st.integers(1, count - 1))

    def takes(cut: int) -> float:
        left, loading, seen = cut, 0.0, set()
        for tier, tokens in runs:
            if left > 0:
                loading += pace.tiers[tier][1] * min(tokens, left)  # type: ignore[index]
                loading += 0 if tier in seen else pace.tiers[tier][0]  # type: ignore[index]
                seen.add(tier)
                left -= tokens
        computed = max(1, count - cut)
        return pace.base + pace.token * computed + pace.pair * computed * (cut + computed / 2) + loading

    stored = sum(tokens for _, tokens in runs)
    ends = [sum(tokens for _, tokens in runs[:index]) for index in range(len(runs) + 1)]
    assert min(takes(end) for end in ends) <= takes(min(inside, stored)) * 1.001


@given(st.integers(1, 20_000), st.lists(st.sampled_from(SIZES), max_size=5))
def test_without_measurements_it_loads(tokens: int, prefilled: list[int]) -> None:
    pace = fit(Speeds().plus([Observation(None, 0, 0, n, 0.1) for n in prefilled]))
    plan = decide(pace, tokens + 1, [("redis", tokens)], tokens)
    assert (plan.decision, plan.load_tokens, plan.load_ms) == (Decision.LOAD, None, None)


def test_one_measurement_is_not_enough_to_leave_kv_unread() -> None:
    prefill, load = Observation(None, 0, 0, 1024, 10.0), Observation("redis", 1024, 1024, 1, 500.0)
    seldom = fit(Speeds().plus([prefill, *[load] * 3]))
    often = fit(Speeds().plus([*[prefill] * 3, *[load] * 3]))
    assert decide(seldom, 1025, [("redis", 1024)], 1024).decision is Decision.LOAD
    assert decide(often, 1025, [("redis", 1024)], 1024).decision is Decision.RECOMPUTE


def test_measurements_of_small_prefills_do_not_decide_about_a_large_one() -> None:
    small = [Observation(None, 0, 0, n, 1.0) for n in (64, 256)] * 3
    loads = [Observation("redis", n, n, 1, 100 + n) for n in SIZES] * 3
    plan = decide(fit(Speeds().plus([*small, *loads])), 8193, [("redis", 8192)], 8192)
    assert plan.recompute_ms is not None
    assert plan.load_ms is not None
    assert plan.recompute_ms < plan.load_ms
    assert plan.decision is Decision.LOAD


def test_a_tie_goes_to_the_load() -> None:
    prefill, load = Observation(None, 0, 0, 512, 98.0), Observation("cpu", 512, 512, 1, 100.0)
    plan = decide(fit(Speeds().plus([prefill, load] * 3)), 513, [("cpu", 512)], 512)
    assert plan.recompute_ms is not None
    assert plan.load_ms is not None
    assert plan.recompute_ms < plan.load_ms
    assert plan.decision is Decision.LOAD


def test_a_slow_tier_behind_a_fast_one_is_computed_instead() -> None:
    prefills = [Observation(None, 0, 0, n, 5 + 0.1 * n) for n in SIZES]
    loads = [Observation("cpu", n, n, 1, 10 + 0.001 * n) for n in SIZES]
    slow = [Observation("disk", n, n, 1, 300 + 0.5 * n) for n in SIZES]
    pace = fit(Speeds().plus([*prefills, *loads, *slow] * 3))
    plan = decide(pace, 4097, [("cpu", 2048), ("disk", 2048)], 4096)
    assert (plan.decision, plan.load_tokens) == (Decision.PARTIAL, 2048)


def test_a_gap_is_foreseen_but_what_is_behind_it_is_asked_for_all_the_same() -> None:
    plan = decide(measured(1.0, 0.01), 4097, [("redis", 1024)], 4096)
    assert (plan.decision, plan.load_tokens) == (Decision.PARTIAL, None)
    whole = decide(measured(1.0, 0.01), 4097, [("redis", 4096)], 4096)
    assert whole.predicted_ms is not None
    assert plan.predicted_ms is not None
    assert plan.predicted_ms > whole.predicted_ms


def test_a_directory_that_knows_nothing_does_not_prevent_a_load() -> None:
    plan = decide(measured(0.001, 1.0), 1025, [], 1024)
    assert (plan.decision, plan.load_tokens, plan.predicted_ms) == (Decision.LOAD, None, None)


@pytest.mark.parametrize("recompute", [0.001, 1.0])
def test_the_operator_decides_whatever_is_measured(recompute: float) -> None:
    pace, runs = measured(recompute, 0.05), [("redis", 1024)]
    assert decide(pace, 1025, runs, 1024, Choice.LOAD).decision is Decision.LOAD
    plan = decide(pace, 1025, runs, 1024, Choice.RECOMPUTE)
    assert (plan.decision, plan.load_tokens) == (Decision.RECOMPUTE, 0)
    assert plan.predicted_ms == plan.recompute_ms


def test_where_nothing_was_stored_there_is_nothing_to_limit() -> None:
    plan = decide(measured(1.0, 0.05), 20, [], 0)
    assert (plan.decision, plan.load_tokens) == (Decision.RECOMPUTE, None)


def trials(pace: Pace, takes: float, size: int) -> list[int]:
    """All that are made one after the other, on an engine that takes so many ms a token."""
    made: list[int] = []
    while (tokens := trial(pace, decide(pace, size + 1, [("redis", size)], size), size + 1)) is not None:
        made.append(tokens)
        pace = fit(pace.speeds.plus([Observation(None, 0, 0, tokens, 5 + takes * tokens)]))
        assert len(made) < 40
    return made


def test_where_computing_is_slow_two_small_trials_settle_it() -> None:
    loads = fit(Speeds().plus([Observation("redis", 8192, 8192, 1, 300.0)] * 3))
    assert trials(loads, 1.5, 8192) == [64, 256]


def test_where_computing_is_fast_trials_grow_step_by_step_until_the_window_itself_is_measured() -> None:
    loads = fit(Speeds().plus([Observation("redis", 8192, 8192, 1, 300.0)] * 3))
    made = trials(loads, 0.01, 8192)
    assert made[:2] == [64, 256]
    assert all(later <= 2 * earlier for earlier, later in pairwise(made[1:]))
    assert made[-1] == 8193


@given(COST, COST, st.sampled_from(SIZES))
def test_a_trial_that_may_win_takes_about_as_long_as_the_load_at_most(
    recompute: float, load: float, size: int
) -> None:
    pace = measured(recompute, load)
    plan = Plan(Decision.LOAD, None, 2 * size * load, 2 * size * load, pace.ms([], 0, size))
    tokens = trial(pace, plan, size)
    if tokens is not None:
        expected = pace.ms([], 0, tokens)
        assert expected is not None
        assert plan.load_ms is not None
        assert expected <= 1.6 * plan.load_ms


@given(COST, COST, st.sampled_from(SIZES))
def test_what_is_obvious_is_what_would_be_decided_for_any_tier(
    recompute: float, load: float, size: int
) -> None:
    pace = measured(recompute, load)
    plan = obvious(pace, size + 1, size)
    for tier in TIERS:
        looked_up = decide(pace, size + 1, [(tier, size)], size)
        if plan is not None:
            assert (plan.decision, plan.load_tokens) == (looked_up.decision, looked_up.load_tokens)
            assert plan.loaded_from([tier]).predicted_ms == looked_up.predicted_ms
            assert plan.recompute_ms == looked_up.recompute_ms
        elif looked_up.load_ms is not None and looked_up.recompute_ms is not None:
            # Of tiers that are all as fast: nothing here is hidden by a slower one.
            assert 2 * looked_up.load_ms > looked_up.recompute_ms * 0.99


def test_one_slow_tier_makes_it_worth_to_look() -> None:
    fast = [Observation(tier, 1024, 1024, 1, 10.0) for tier in ("cpu", "redis")]
    prefill, slow = Observation(None, 0, 0, 1024, 100.0), Observation("disk", 1024, 1024, 1, 90.0)
    assert obvious(fit(Speeds().plus([prefill, *fast] * 3)), 1025, 1024) is not None
    assert obvious(fit(Speeds().plus([prefill, *fast, slow] * 3)), 1025, 1024) is None


def test_where_tokens_of_several_tiers_were_loaded_nothing_had_been_predicted() -> None:
    plan = obvious(measured(1.0, 0.01), 1025, 1024)
    assert plan is not None
    assert plan.loaded_from(["cpu", "disk"]).predicted_ms is None
    assert plan.loaded_from(["gpu"]).predicted_ms is None
