"""Figures beside their thresholds: the one of the design that required them (seed), and our own (goal)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cwm_bench.harness.figures import Section

COLUMNS: Final = ("figure", "measured", "unit", "seed", "seed met", "goal", "goal met")
_ABOUT: Final = 0.25


@dataclass(frozen=True, slots=True)
class Bound:
    """A threshold, and how figures compare with it."""

    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"

    def holds(self, measured: float) -> bool:
        match self.sign:
            case "<":
                return measured < self.value
            case ">=":
                return measured >= self.value
            case _:
                return abs(measured - self.value) <= _ABOUT * self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """``key`` is its name in the summary."""

    key: str
    name: str
    measured: float
    unit: str
    seed: Bound | None = None
    goal: Bound | None = None

    def row(self) -> tuple[Any, ...]:
        bounds = [cell for bound in (self.seed, self.goal) for cell in _cells(bound, self.measured)]
        return (self.name, self.measured, self.unit, *bounds)


def under(value: float) -> Bound:
    return Bound("<", value)


def at_least(value: float) -> Bound:
    return Bound(">=", value)


def about(value: float) -> Bound:
    """Within a quarter of ``value``."""
    return Bound("~", value)


def section(title: str, figures: list[Figure], note: str = "") -> Section:
    return Section(title, COLUMNS, [figure.row() for figure in figures], note)


def summary(figures: list[Figure]) -> dict[str, float]:
    return {figure.key: figure.measured for figure in figures}


def percentile(values: list[float], percent: int) -> float:
    """The smallest of ``values`` that ``percent`` % of them do not exceed."""
    ordered = sorted(values)
    return round(ordered[max(0, -(-percent * len(ordered) // 100) - 1)], 4)


def _cells(bound: Bound | None, measured: float) -> tuple[str, str]:
    return ("", "") if bound is None else (str(bound), "yes" if bound.holds(measured) else "no")
