"""How much of one result an agent is given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.budgets import Budgets
from cwm.domain.tool_policy import ToolPolicy

POLICY = ToolPolicy(max_tokens=10_000, preview_tokens=2_000)
AMOUNTS = st.integers(0, 1_000_000)


def test_an_agent_with_an_empty_window_gets_what_the_policy_says() -> None:
    assert Budgets().allowance(POLICY, 0) == 10_000


def test_a_result_takes_a_share_of_what_is_left_of_the_window() -> None:
    budgets = Budgets(window_tokens=200_000, window_share=0.25)

    assert [budgets.allowance(POLICY, had) for had in (160_000, 180_000, 190_000)] == [10_000, 5_000, 2_500]


def test_what_is_left_never_goes_below_a_preview() -> None:
    assert Budgets().allowance(POLICY, 199_999) == Budgets().allowance(POLICY, 5_000_000) == 2_000


def test_a_tool_that_says_less_than_a_preview_keeps_to_that() -> None:
    assert Budgets().allowance(ToolPolicy(max_tokens=500), 5_000_000) == 500


def test_an_unlimited_tool_is_delivered_whole_however_full_the_window_is() -> None:
    assert Budgets().allowance(ToolPolicy(max_tokens=None), 5_000_000) is None


def test_a_window_without_an_end_never_fills() -> None:
    assert Budgets(window_tokens=None).allowance(POLICY, 5_000_000) == 10_000


def test_budgets_that_are_off_limit_nothing() -> None:
    assert Budgets(enabled=False).allowance(POLICY, 5_000_000) is None


@given(AMOUNTS, AMOUNTS, st.integers(200, 50_000), st.integers(200, 50_000))
def test_who_had_more_gets_no_more(one: int, other: int, most: int, preview: int) -> None:
    policy = ToolPolicy(max_tokens=most, preview_tokens=preview)
    less, more = sorted((one, other))

    first, second = (Budgets().allowance(policy, had) for had in (less, more))

    assert first is not None
    assert second is not None
    assert min(most, preview) <= second <= first <= most
