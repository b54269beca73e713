"""Decides how to restore a window's KV: load it, recompute it, or load a part, whichever is predicted to be fastest.

The time to load the first ``k`` of ``n`` tokens and compute the rest is concave in ``k`` within one tier: every
further token costs the same to load, and later tokens save more computation. So the best cut is at an end or at a
boundary between tiers; only these are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Final

from cwm.domain.speeds import Pace, Run

_MARGIN: Final = 0.95
_ENOUGH: Final = 3  # measurements near a size that an unusual choice needs
_CONTENDER: Final = 1.5
_OBVIOUS: Final = 2.0
_FIRST_TRIALS: Final = (64, 256)


class Choice(StrEnum):
    """Who decides: the planner, or the operator in general."""

    AUTO = "auto"
    LOAD = "load"
    RECOMPUTE = "recompute"


class Decision(StrEnum):
    """``partial``: some stored tokens are not loaded, because they are gone or computing them is faster."""

    LOAD = "load"
    RECOMPUTE = "recompute"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision with its predictions, in ms; a time is None when no measurement supports a prediction.

    At most ``load_tokens`` are loaded (None: all that are there). ``load_ms`` and ``recompute_ms`` are the
    predictions for the two fixed choices, ``predicted_ms`` for this one. ``by_tier`` has the predicted load time by
    tier when it was not looked up which tier holds the tokens.
    """

    decision: Decision
    load_tokens: int | None
    predicted_ms: float | None
    load_ms: float | None
    recompute_ms: float | None
    by_tier: Mapping[str, float] = field(default_factory=dict)

    def loaded_from(self, tiers: Iterable[str]) -> Plan:
        """The plan with the prediction for these tiers, once it is known which ones were loaded from."""
        predictions = [self.by_tier[tier] for tier in tiers if tier in self.by_tier]
        if len(predictions) != 1:
            return self
        return replace(self, predicted_ms=predictions[0], load_ms=predictions[0])


def obvious(pace: Pace, token_count: int, stored_tokens: int) -> Plan | None:
    """A plan to load, if loading from any measured tier takes at most half the time of recomputing; else None.

    Then it does not matter which tier holds the tokens, so nobody needs to look it up. A tier that was never
    measured is loaded from as well.
    """
    recompute_ms = _ms(pace, token_count, (), 0)
    by_tier = {
        tier: _ms(pace, token_count, [(tier, stored_tokens)], stored_tokens) for tier in pace.tiers or {}
    }
    known_times = {tier: ms for tier, ms in by_tier.items() if ms is not None}
    if not stored_tokens or recompute_ms is None or not known_times:
        return None
    if _OBVIOUS * max(known_times.values()) > recompute_ms:
        return None
    return Plan(Decision.LOAD, None, None, None, recompute_ms, known_times)


def decide(
    pace: Pace, token_count: int, runs: Sequence[Run], stored_tokens: int, choice: Choice = Choice.AUTO
) -> Plan:
    """Choose for ``token_count`` tokens, of which ``stored_tokens`` were stored and ``runs`` are resident, gap-free.

    Loading restores the very same KV, so it is preferred unless an alternative was measured to be clearly faster.
    Not knowing of resident chunks does not prove that there are none: then it loads too.
    """
    cuts = [0, *accumulate(tokens for _, tokens in runs)]
    times = [_ms(pace, token_count, runs[:index], cut) for index, cut in enumerate(cuts)]
    resident = cuts[-1]
    load_ms, recompute_ms = times[-1] if resident else None, times[0]
    if choice is Choice.RECOMPUTE or stored_tokens == 0:
        limit = 0 if stored_tokens else None
        return Plan(Decision.RECOMPUTE, limit, recompute_ms, load_ms, recompute_ms)
    whole = Decision.PARTIAL if 0 < resident < stored_tokens else Decision.LOAD
    loads = Plan(whole, None, load_ms, load_ms, recompute_ms)
    if choice is Choice.LOAD or load_ms is None or any(pace.near(*run) < _ENOUGH for run in runs):
        return loads
    others = [
        (ms, cut)
        for cut, ms in zip(cuts[:-1], times[:-1], strict=True)
        if ms is not None and pace.near(None, token_count - cut) >= _ENOUGH
    ]
    best_ms, cut = min(others, default=(load_ms, resident))
    if best_ms >= _MARGIN * load_ms:
        return loads
    return Plan(Decision.PARTIAL if cut else Decision.RECOMPUTE, cut, best_ms, load_ms, recompute_ms)


def trial(pace: Pace, plan: Plan, token_count: int) -> int | None:
    """Tokens of a prefill worth timing in the background, so that the next plan knows more; None for none.

    An engine without measurements gets two small ones. After that, only where recomputing may win: each trial is at
    most twice as long as the longest one measured and no longer than the window, whose load takes about as long.
    """
    measured = pace.prefills
    if len(measured) < len(_FIRST_TRIALS):
        return min(_FIRST_TRIALS[len(measured)], token_count)
    if plan.load_ms is None or plan.recompute_ms is None or plan.recompute_ms > _CONTENDER * plan.load_ms:
        return None
    if pace.near(None, token_count) >= _ENOUGH:
        return None
    return min(2 * max(measured), token_count)


def _ms(pace: Pace, token_count: int, runs: Sequence[Run], cut: int) -> float | None:
    """Predicted time in ms. The last token is always computed: its output is the purpose of the request."""
    computed = max(1, token_count - cut)
    return pace.ms(runs, token_count - computed, computed)
