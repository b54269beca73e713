"""What thaws said of right and of wrong KV, by cell, and the summary of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from cwm_bench.harness.figures import Section, median, ratio
from cwm_bench.proof.faults import Planted
from cwm_bench.proof.parts import Company, Layout

_GOOD: Final = frozenset({"exact", "within_noise"})


@dataclass(frozen=True, slots=True)
class Thawed:
    """One thaw of a cell. ``planted`` is None for right KV; ``reached``: the wrong chunk was loaded, or all right ones. ``touched``: stored chunks of other windows that are gone since."""

    layout: Layout
    dtype: str
    company: Company
    planted: Planted | None
    tokens: int
    reached: bool
    verification: str
    compared_with: str
    deviation: float | None
    touched: int
    verify_ms: float

    @property
    def is_missed(self) -> bool:
        return self.planted is not None and self.reached and self.verification in _GOOD

    @property
    def is_condemned_right(self) -> bool:
        return self.planted is None and self.verification == "mismatch"

    @property
    def has_control(self) -> bool:
        return self.compared_with == "canary_and_control"


@dataclass(frozen=True, slots=True)
class Speed:
    """Thaws of one long window, with their looks, beside computing it; in ms."""

    dtype: str
    company: Company
    tokens: int
    cold_ms: Sequence[float]
    thaw_ms: Sequence[float]

    @property
    def speedup(self) -> float:
        return ratio(median(self.cold_ms), median(self.thaw_ms))

    @property
    def slowest_speedup(self) -> float:
        """By the 95th percentile of the thaws."""
        return ratio(median(self.cold_ms), sorted(self.thaw_ms)[int(0.95 * (len(self.thaw_ms) - 1))])


def sections(thaws: Sequence[Thawed], speeds: Sequence[Speed]) -> list[Section]:
    return [_by_cell(thaws), _by_fault(thaws), _by_length(thaws), _speeds(speeds)]


def summary(thaws: Sequence[Thawed], speeds: Sequence[Speed]) -> dict[str, Any]:
    right = [thaw for thaw in thaws if thaw.planted is None and thaw.reached]
    alone = [speed.speedup for speed in speeds if speed.company is Company.ALONE]
    return {
        "planted": {dtype: _planted(thaws, dtype) for dtype in ("float32", "bfloat16")},
        "missed_float32": _missed(thaws, "float32"),
        "missed_bfloat16": _missed(thaws, "bfloat16"),
        "right": len(right),
        "condemned_right": sum(thaw.is_condemned_right for thaw in thaws),
        "controls_share": ratio(sum(thaw.has_control for thaw in right), len(right)),
        "others_touched": sum(thaw.touched for thaw in thaws),
        "thaw_speedup_8k": min(alone, default=None),
    }


def _planted(thaws: Sequence[Thawed], dtype: str) -> int:
    return sum(thaw.dtype == dtype and thaw.planted is not None and thaw.reached for thaw in thaws)


def _missed(thaws: Sequence[Thawed], dtype: str) -> int:
    return sum(thaw.dtype == dtype and thaw.is_missed for thaw in thaws)


def _by_cell(thaws: Sequence[Thawed]) -> Section:
    table = Section(
        "right KV",
        (
            "layout",
            "type",
            "company",
            "thaws",
            "loaded",
            "verdicts",
            "controls",
            "condemned",
            "largest deviation",
        ),
        note="deviation in nats; controls: the context was computed afresh before the verdict",
    )
    for layout, dtype, company in dict.fromkeys((t.layout, t.dtype, t.company) for t in thaws):
        cell = (layout, dtype, company, None)
        here = [t for t in thaws if (t.layout, t.dtype, t.company, t.planted) == cell]
        table.rows.append(
            (
                layout.value,
                dtype,
                company.value,
                len(here),
                sum(thaw.reached for thaw in here),
                _counts(here),
                sum(thaw.has_control for thaw in here),
                sum(thaw.is_condemned_right for thaw in here),
                max((thaw.deviation or 0.0 for thaw in here), default=0.0),
            )
        )
    return table


def _by_fault(thaws: Sequence[Thawed]) -> Section:
    table = Section(
        "planted faults",
        ("layout", "type", "company", "fault", "loaded", "verdicts", "missed", "least deviation"),
        note="loaded: the wrong chunk reached the engine; missed: the verdict was good all the same",
    )
    planted_in = [t for t in thaws if t.planted is not None]
    for cell in dict.fromkeys((t.layout, t.dtype, t.company, t.planted) for t in planted_in):
        here = [t for t in planted_in if (t.layout, t.dtype, t.company, t.planted) == cell and t.reached]
        layout, dtype, company, planted = cell
        table.rows.append(
            (
                layout.value,
                dtype,
                company.value,
                planted.value if planted else "",
                len(here),
                _counts(here),
                sum(thaw.is_missed for thaw in here),
                min((thaw.deviation or 0.0 for thaw in here), default=0.0),
            )
        )
    return table


def _by_length(thaws: Sequence[Thawed]) -> Section:
    table = Section("planted faults by length", ("tokens", "type", "loaded", "missed"))
    bounds = (0, 1_000, 2_000, 4_000, 8_192, 1_000_000)
    for low, high in pairwise(bounds):
        for dtype in dict.fromkeys(thaw.dtype for thaw in thaws):
            here = [
                t for t in thaws if t.planted and t.reached and t.dtype == dtype and low < t.tokens <= high
            ]
            if here:
                table.rows.append((f"to {high:,}", dtype, len(here), sum(thaw.is_missed for thaw in here)))
    return table


def _speeds(speeds: Sequence[Speed]) -> Section:
    table = Section(
        "a thaw with its look, beside computing",
        ("type", "company", "tokens", "cold ms", "thaw ms", "times as fast", "by the 95th percentile"),
    )
    table.rows.extend(
        (
            speed.dtype,
            speed.company.value,
            speed.tokens,
            median(speed.cold_ms),
            median(speed.thaw_ms),
            speed.speedup,
            speed.slowest_speedup,
        )
        for speed in speeds
    )
    return table


def _counts(thaws: Sequence[Thawed]) -> str:
    counts = Counter(thaw.verification for thaw in thaws)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
