"""Verdicts: what looks at restored KV prove, compared with the canary and, where that leaves a doubt, with KV computed afresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from cwm.domain.canary import Canary, Origin
from cwm.domain.look import Distance, Look, distance
from cwm.domain.noise import NoiseLimits

# How many times as far apart looks must be as those they are measured by.
_FURTHER: Final = 2.0
_MOST: Final = 0.5

_UNPROVEN: Final = "the canary was recorded on KV that rests on loads nothing has proven yet"


class Verification(StrEnum):
    """The verdict on restored KV. Nothing is deleted but on ``mismatch``.

    ``exact``: no place differs. ``within_noise``: no more than right KV does by itself. ``mismatch``: the KV is wrong, the control proves it.
    ``canary_stale``: restored and computed KV agree, and the canary is another engine's. ``undecided``: the control could not tell. ``skipped``: nothing was compared, or
    with nothing that is proven.
    """

    EXACT = "exact"
    WITHIN_NOISE = "within_noise"
    MISMATCH = "mismatch"
    CANARY_STALE = "canary_stale"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"

    @property
    def is_good(self) -> bool:
        """Whether the restored KV may be continued from."""
        return self in {Verification.EXACT, Verification.WITHIN_NOISE, Verification.CANARY_STALE}


_REASONS: Final = {
    Verification.CANARY_STALE: "restored and computed KV agree, and differ from the canary",
    Verification.UNDECIDED: "restored, computed and frozen KV differ from each other by little more than noise",
}


@dataclass(frozen=True, slots=True)
class ControlEvidence:
    """Distances that a control measured.

    ``restored``: of the restored KV from the computed one; ``canary``: of the canary from the computed one; ``itself``: of looks at the
    same KV at that time. ``agreed_tokens``: up to there no place of the restored KV differs from the canary, or from the computed KV if the
    canary proves nothing.
    """

    restored: Distance
    canary: Distance
    itself: Distance
    agreed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on.

    ``distance``: of the restored KV from the canary. ``reason`` says why there is no verdict, or none that is certain.
    """

    verification: Verification
    distance: Distance = field(default_factory=Distance)
    limits: NoiseLimits | None = None
    origin: Origin | None = None
    control: ControlEvidence | None = None
    reason: str = ""

    @property
    def compared_with(self) -> Literal["nothing", "canary", "canary_and_control"]:
        """What the restored KV was compared with: nothing, the canary, or the canary and the control."""
        if not self.distance.places:
            return "nothing"
        return "canary" if self.control is None else "canary_and_control"

    @property
    def sound_tokens(self) -> int:
        """How many leading tokens of the restored KV agree with what it was compared with; 0 without a control."""
        return 0 if self.control is None else self.control.agreed_tokens


def skipped(reason: str) -> Evidence:
    return Evidence(Verification.SKIPPED, reason=reason)


def compare(canary: Canary, looks: Sequence[Look], limits: NoiseLimits | None = None) -> Evidence:
    """Compare looks at restored KV with the canary; ``undecided`` where only the noise (``limits``) or a control can tell."""
    apart = distance(canary.looks, looks, canary.sure_places)
    if not apart.places:
        return skipped("the canary has none of the places that were looked at")
    verdict, reason = Verification.UNDECIDED, ""
    if apart.is_exact or (limits is not None and limits.allow(apart)):
        verdict = Verification.EXACT if apart.is_exact else Verification.WITHIN_NOISE
        if not canary.origin.is_proven:
            verdict, reason = Verification.SKIPPED, _UNPROVEN
    return Evidence(verdict, apart, limits, canary.origin, reason=reason)


def judge(
    canary: Canary,
    looks: Sequence[Look],
    restored: tuple[Look, Look],
    fresh: tuple[Look, Look],
    limits: NoiseLimits,
) -> Evidence:
    """The verdict of a control: two looks at the restored KV and two at the context computed afresh, taken in turns.

    ``looks`` are those at the restored KV before the control. Right KV has the bits that the canary was recorded on, so it stays as near to the
    canary as looks at the same KV are to each other. The computed one may be further off, because it was computed in other shapes.
    """
    # A canary that proves nothing leaves the computed KV, which may differ a little at every probe: the places tell more.
    sure = canary.sure_places if canary.origin.is_proven else None
    control = ControlEvidence(
        distance(restored, fresh, sure),
        distance(canary.looks, fresh, sure),
        _larger(distance(restored[:1], restored[1:], sure), distance(fresh[:1], fresh[1:], sure)),
        agreed_tokens=distance(canary.looks if canary.origin.is_proven else fresh, restored).agreed,
    )
    apart = distance(canary.looks, [*looks, *restored], canary.sure_places)
    if not canary.origin.is_proven:
        verdict = _by_control_alone(control, limits)
    elif apart.is_exact:
        verdict = Verification.EXACT
    elif limits.allow(apart):
        verdict = Verification.WITHIN_NOISE
    else:
        verdict = _by_control(apart, control, limits)
    return Evidence(verdict, apart, limits, canary.origin, control, _REASONS.get(verdict, ""))


def _by_control(apart: Distance, control: ControlEvidence, limits: NoiseLimits) -> Verification:
    """Wrong KV is seen at most places; a few may differ by themselves."""
    odd_one = _is_odd_one(apart, control, "largest") or _is_odd_one(apart, control, "mean")
    if apart.share >= _MOST and odd_one:
        return Verification.MISMATCH
    itself, agree = control.itself, limits.allow(control.restored)
    as_itself = apart.largest <= _FURTHER * itself.largest and apart.mean <= _FURTHER * itself.mean
    if as_itself and apart.share <= max(_MOST, itself.share):
        return Verification.WITHIN_NOISE
    if agree:
        return Verification.WITHIN_NOISE if apart.share < _MOST else Verification.CANARY_STALE
    return Verification.UNDECIDED


def _by_control_alone(control: ControlEvidence, limits: NoiseLimits) -> Verification:
    """The verdict where the canary proves nothing: the restored KV against the computed one, which may have been computed in other shapes."""
    restored = control.restored
    if restored.is_exact:
        return Verification.EXACT
    if restored.largest <= limits.computed:
        return Verification.WITHIN_NOISE
    if restored.largest > _FURTHER * max(control.itself.largest, limits.computed):
        return Verification.MISMATCH
    return Verification.UNDECIDED


def _is_odd_one(apart: Distance, control: ControlEvidence, measure: Literal["largest", "mean"]) -> bool:
    """Whether the restored KV is further from the computed one than looks at the same KV are, and the canary is with the computed one."""
    of_apart, of_restored, of_canary, of_itself = (
        getattr(each, measure) for each in (apart, control.restored, control.canary, control.itself)
    )
    return bool(of_restored > _FURTHER * of_itself and of_apart > _FURTHER * of_canary)


def _larger(one: Distance, other: Distance) -> Distance:
    """The larger figures of both, each by itself."""
    return Distance(
        max(one.places, other.places),
        max(one.differing, other.differing),
        max(one.largest, other.largest),
        max(one.mean, other.mean),
    )
