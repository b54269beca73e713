"""Figures beside their bounds."""

from __future__ import annotations

from cwm_bench.harness.goals import Figure, about, at_least, percentile, section, summary, under


def test_a_bound_is_held_or_not() -> None:
    assert under(5).holds(4.9)
    assert not under(5).holds(5)
    assert at_least(0.8).holds(0.8)
    assert not at_least(0.8).holds(0.79)
    assert about(100).holds(120)
    assert not about(100).holds(130)


def test_a_row_has_the_figure_and_what_became_of_each_bound() -> None:
    figures = [
        Figure("a_ms", "a", 7.5, "ms", under(10), under(5)),
        Figure("b", "b", 1, "share", None, at_least(1)),
    ]
    told = section("some", figures, "a note")
    assert told.rows == [
        ("a", 7.5, "ms", "< 10", "yes", "< 5", "no"),
        ("b", 1, "share", "", "", ">= 1", "yes"),
    ]
    assert all(len(row) == len(told.columns) for row in told.rows)
    assert summary(figures) == {"a_ms": 7.5, "b": 1}


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0
    assert percentile([7.0], 99) == 7.0
