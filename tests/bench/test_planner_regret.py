"""What ``cwm bench planner`` makes of its timings."""

from __future__ import annotations

from collections import Counter

from cwm.domain.planner import Choice
from cwm_bench.planner import Cell


def cell(loads: list[float], recomputes: list[float], planned: list[float], **decisions: int) -> Cell:
    times = {Choice.LOAD: loads, Choice.RECOMPUTE: recomputes, Choice.AUTO: planned}
    return Cell(times, Counter(decisions))


def test_timing_the_same_choice_twice_is_no_regret_of_the_decision() -> None:
    slow = cell([100.0, 110.0, 90.0], [300.0] * 3, [150.0, 140.0, 160.0], load=3)
    assert slow.regret > 0.4
    assert slow.decision_regret == 0


def test_a_wrong_decision_costs_what_the_other_choice_took() -> None:
    wrong = cell([100.0] * 4, [300.0] * 4, [300.0, 100.0, 100.0, 100.0], load=3, recompute=1)
    assert wrong.decision_regret == 0.5


def test_a_part_loaded_costs_what_the_planner_took() -> None:
    assert cell([100.0] * 3, [300.0] * 3, [120.0] * 3, partial=3).decision_regret == 0.2
