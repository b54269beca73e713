"""Noise: how far two looks at the same KV are apart by themselves, as measured on a deployment.

A batch of another shape sums in another order, which flips roundings. In bfloat16 that moves a few places by some tenths of a
nat; in float32 it moves none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from cwm.domain.look import EXACT_NATS, Distance

CANNOT_BE_JUDGED: Final = "Looks at the same KV differ by more than a nat on this engine, so wrong KV could not be told from right KV, and none is loaded or stored."
"""Why an engine reuses no KV although it could."""

_KEPT_PAIRS: Final = 256
_ENOUGH_PAIRS: Final = 64
_RANK: Final = 0.99
# Pairs are few beside what is judged by them.
_MARGIN: Final = 1.5
_DIGITS: Final = 4
_TOO_NOISY_NATS: Final = 1.0
_UNMEASURED_NATS: Final = 1.0
# A batch of company moves a computation by more than other steps do.
_FURTHER: Final = 2.0


@dataclass(frozen=True, slots=True)
class NoiseLimits:
    """What right KV stays within.

    ``largest`` change in nats, and ``share`` (0 to 1) of places that differ: in 99 of 100 comparisons of looks at the same KV.
    ``computed``: the largest change between two computations of one context.
    """

    largest: float
    share: float
    computed: float = 1.0

    def allow(self, distance: Distance) -> bool:
        """One place more than the share: which one differs depends on the company, wrong KV changes nearly all."""
        few = distance.differing <= 1 + self.share * distance.places
        return few and distance.largest <= max(self.largest, self.computed)


@dataclass(frozen=True, slots=True)
class Noise:
    """The latest comparisons of looks at the same KV: the largest change in nats, and the share of places that differ.

    ``computed``: the largest change between two computations of one context, in other steps; None before it is measured.
    """

    pairs: tuple[tuple[float, float], ...] = ()
    computed: float | None = None

    @property
    def is_measured(self) -> bool:
        return len(self.pairs) >= _ENOUGH_PAIRS and self.computed is not None

    @property
    def limits(self) -> NoiseLimits:
        largest, share = (_ranked([pair[at] for pair in self.pairs]) for at in (0, 1))
        computed = _UNMEASURED_NATS if self.computed is None else _FURTHER * self.computed
        return NoiseLimits(max(EXACT_NATS, largest * _MARGIN), share * _MARGIN, max(EXACT_NATS, computed))

    @property
    def is_too_large(self) -> bool:
        """Whether looks at the same KV differ by more than a nat, so that damage cannot be told from noise."""
        return self.is_measured and _ranked([largest for largest, _ in self.pairs]) > _TOO_NOISY_NATS

    def plus(self, distances: Sequence[Distance], computed: float | None = None) -> Noise:
        new = tuple((round(each.largest, _DIGITS), round(each.share, _DIGITS)) for each in distances)
        measured = [each for each in (self.computed, computed) if each is not None]
        return Noise((*self.pairs, *new)[-_KEPT_PAIRS:], max(measured, default=None))

    def as_dict(self) -> dict[str, Any]:
        return {"pairs": [list(pair) for pair in self.pairs], "computed": self.computed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        pairs = tuple((float(largest), float(share)) for largest, share in data["pairs"])
        return cls(pairs, data.get("computed"))


def _ranked(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(_RANK * len(values)))] if values else 0.0
