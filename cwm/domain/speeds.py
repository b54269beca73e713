"""Cost model of an engine: how fast it computes and how fast each tier loads, fitted to measured requests.

The time of a request is modelled as a sum: a fixed cost, a cost per computed token, a cost per pair of tokens that
attention compares, and for each tier loaded from, a fixed cost and a cost per token.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Run: TypeAlias = tuple[str, int]
"""A tier, and the number of consecutive tokens loaded from it."""

_PER_KIND: Final = 5  # observations per tier and power of two: the latest of each size count
_FADES: Final = 0.8  # weight of an observation relative to the next newer one of its kind
_NEAR: Final = math.log(1.5)
_PRIORS: Final = (
    1e-3,
    1e-3,
    3e-2,
)  # the strongest is attention's: only measurements of different sizes can show its cost
_TIER_PRIOR: Final = 1e-3
_ROUNDS: Final = 4
_SWEEPS: Final = 300
_SETTLED: Final = 1e-7
_OUTLIER: Final = 0.05
_LOCAL: Final = 0.5  # weight of the model relative to one observation of exactly this size
_FARTHEST: Final = 0.7


@dataclass(frozen=True, slots=True)
class Observation:
    """The measured time of one request. Counts in tokens, time in ms.

    ``loaded`` tokens came from ``tier`` (None: nothing was loaded); ``context`` tokens preceded the ``computed``
    ones, wherever their KV came from.
    """

    tier: str | None
    loaded: int
    context: int
    computed: int
    ms: float

    @property
    def size(self) -> int:
        """The size that defines an observation's kind: tokens loaded, or tokens computed when none were loaded."""
        return self.computed if self.tier is None else self.loaded

    @property
    def kind(self) -> tuple[str | None, int]:
        return self.tier, self.size.bit_length()


@dataclass(frozen=True, slots=True)
class Speeds:
    """The latest observations of each kind on one engine, oldest first."""

    observations: tuple[Observation, ...] = ()

    def plus(self, new: Iterable[Observation]) -> Speeds:
        """Add ``new`` observations; keep the latest 5 of each kind. Observations without a valid time are dropped."""
        latest: list[Observation] = []
        counts: Counter[tuple[str | None, int]] = Counter()
        timed = (o for o in new if math.isfinite(o.ms) and o.ms > 0)
        for observation in reversed((*self.observations, *timed)):
            counts[observation.kind] += 1
            if counts[observation.kind] <= _PER_KIND:
                latest.append(observation)
        return Speeds(tuple(reversed(latest)))

    def as_dict(self) -> dict[str, Any]:
        return {"observations": [[o.tier, o.loaded, o.context, o.computed, o.ms] for o in self.observations]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Speeds:
        """Data of another version that this one cannot read counts as no observations: they can be measured again."""
        try:
            return cls(tuple(Observation(*observation) for observation in data["observations"]))
        except (KeyError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True)
class Pace:
    """The fitted cost model: ``base``, ``token`` and ``pair`` for computing, ``tiers`` for loading.

    In ms, never negative.
    """

    speeds: Speeds
    base: float = 0.0
    token: float = 0.0
    pair: float = 0.0
    tiers: Mapping[str, tuple[float, float]] | None = None

    def ms(self, runs: Sequence[Run], context: int, computed: int) -> float | None:
        """Predicted time to load ``runs`` and compute ``computed`` tokens behind ``context``; None if never measured.

        A measurement of nearly the same size counts for more than the model.
        """
        modelled = self._modelled(runs, context, computed)
        if modelled is None or len(runs) > 1:
            return modelled
        tier, size = runs[0] if runs else (None, computed)
        return modelled * self._correction(tier, size)

    def near(self, tier: str | None, size: int) -> int:
        """How many measurements exist of about ``size`` tokens."""
        return sum(o.tier == tier and abs(_distance(o.size, size)) <= _NEAR for o in self.speeds.observations)

    @property
    def prefills(self) -> list[int]:
        """Token counts of the prefills that were measured: computed from the start, or nearly so."""
        return [o.computed for o in self.speeds.observations if o.tier is None and o.context < o.computed]

    def _modelled(self, runs: Sequence[Run], context: int, computed: int) -> float | None:
        costs = self.tiers or {}
        if any(tier not in costs for tier, _ in runs) or not self.speeds.observations:
            return None
        if not runs and not self.prefills:
            return None
        fixed = sum(costs[tier][0] for tier in {tier for tier, _ in runs})
        loading = fixed + sum(costs[tier][1] * tokens for tier, tokens in runs)
        return self.base + self.token * computed + self.pair * _pairs(context, computed) + loading

    def _correction(self, tier: str | None, size: int) -> float:
        """By which factor this size was measured slower than modelled; 1 far from any measurement."""
        weights, logarithms = _LOCAL, 0.0
        for observation, recency in _by_recency(self.speeds):
            if observation.tier != tier:
                continue
            closeness = recency * math.exp(-2 * (_distance(observation.size, size) / math.log(2)) ** 2)
            runs = [(observation.tier, observation.loaded)] if observation.tier is not None else []
            modelled = self._modelled(runs, observation.context, observation.computed)
            if modelled and closeness > 1e-6:
                off = math.log(observation.ms / modelled)
                logarithms += closeness * max(-_FARTHEST, min(_FARTHEST, off))
                weights += closeness
        return math.exp(logarithms / weights)


def fit(speeds: Speeds) -> Pace:
    """The model with the least relative error. Newer and typical observations weigh most.

    Least squares with every cost at least 0, repeated with less weight for outliers.
    """
    tiers = sorted({o.tier for o in speeds.observations if o.tier is not None})
    if not speeds.observations:
        return Pace(speeds)
    rows = [_row(o, tiers) for o in speeds.observations]
    recencies = [recency for _, recency in _by_recency(speeds)]
    scales = [_root_mean_square(column) or 1.0 for column in zip(*rows, strict=True)]
    rows = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    priors = [*_PRIORS, *([_TIER_PRIOR] * (2 * len(tiers)))]
    weights, solution = list(recencies), [0.0] * len(scales)
    for _ in range(_ROUNDS):
        solution = _least_squares(rows, weights, priors)
        misses = [abs(_dot(row, solution) - 1.0) for row in rows]
        usual = max(_OUTLIER, 1.5 * statistics.median(misses))
        weights = [
            recency * min(1.0, usual / max(miss, 1e-9))
            for recency, miss in zip(recencies, misses, strict=True)
        ]
    base, token, pair, *loading = (value / scale for value, scale in zip(solution, scales, strict=True))
    costs = {tier: (loading[2 * i], loading[2 * i + 1]) for i, tier in enumerate(tiers)}
    return Pace(speeds, base, token, pair, costs)


def _row(observation: Observation, tiers: Sequence[str]) -> list[float]:
    """The factor of each cost, divided by the measured time: the model should sum to 1."""
    of_tiers = [
        value
        for tier in tiers
        for value in ((1.0, float(observation.loaded)) if tier == observation.tier else (0.0, 0.0))
    ]
    pairs = _pairs(observation.context, observation.computed)
    return [value / observation.ms for value in (1.0, float(observation.computed), pairs, *of_tiers)]


def _least_squares(
    rows: Sequence[Sequence[float]], weights: Sequence[float], priors: Sequence[float]
) -> list[float]:
    """Weighted ridge regression on a target of 1 with non-negative coefficients, by coordinate descent."""
    size, total = len(priors), sum(weights)
    gram = [[0.0] * size for _ in range(size)]
    target = [0.0] * size
    for row, weight in zip(rows, weights, strict=True):
        for i in range(size):
            if row[i]:
                weighted = weight * row[i]
                target[i] += weighted
                for j in range(size):
                    gram[i][j] += weighted * row[j]
    solution = [0.0] * size
    for _ in range(_SWEEPS):
        moved = 0.0
        for i in range(size):
            curvature = gram[i][i] + priors[i] * total
            rest = target[i] - _dot(gram[i], solution) + gram[i][i] * solution[i]
            value = max(0.0, rest / curvature)
            moved = max(moved, abs(value - solution[i]))
            solution[i] = value
        if moved < _SETTLED:
            break
    return solution


def _by_recency(speeds: Speeds) -> list[tuple[Observation, float]]:
    """Each observation with its weight: 1 for the newest of its kind."""
    newer: Counter[tuple[str | None, int]] = Counter()
    weights = []
    for observation in reversed(speeds.observations):
        weights.append((observation, _FADES ** newer[observation.kind]))
        newer[observation.kind] += 1
    return weights[::-1]


def _pairs(context: int, computed: int) -> float:
    """Each computed token attends to the context and to the computed tokens before it."""
    return computed * (context + computed / 2)


def _distance(a: int, b: int) -> float:
    return math.log(max(a, 1) / max(b, 1))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
