"""Load a window's KV, compute it again, or load part: whichever takes least by what was measured.

The time to load the first ``k`` of ``n`` tokens and compute the rest is concave in ``k`` as long as one
tier is loaded from: every token more costs the same to load, and the later a token, the more it saves. So
the best cut is at an end, or where one tier ends and a slower one begins; no other is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Final

from cwm.domain.speeds import Pace, Run

_MARGIN: Final = 0.95
_ENOUGH: Final = 3  # measurements near a size before an unusual choice rests on them
_CONTENDER: Final = 1.5
_OBVIOUS: Final = 2.0
_FIRST_TRIALS: Final = (64, 256)


class Choice(StrEnum):
    """Who decides: the planner, or the operator once for all."""

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
    """At most ``load_tokens`` are loaded (None for whatever is there); times in ms, None where nothing tells.

    ``load_ms`` and ``recompute_ms`` are the predictions of both fixed choices, ``predicted_ms`` of this one.
    ``by_tier`` are those of loading where it was not looked up which tier holds the tokens.
    """

    decision: Decision
    load_tokens: int | None
    predicted_ms: float | None
    load_ms: float | None
    recompute_ms: float | None
    by_tier: Mapping[str, float] = field(default_factory=dict)

    def loaded_from(self, tiers: Iterable[str]) -> Plan:
        """With what was predicted for these tiers, now that it is known which they are."""
        known = [self.by_tier[tier] for tier in tiers if tier in self.by_tier]
        if len(known) != 1:
            return self
        return replace(self, predicted_ms=known[0], load_ms=known[0])


def obvious(pace: Pace, token_count: int, stored_tokens: int) -> Plan | None:
    """To load, where that takes half the time at most from whichever tier: which one it is need not be asked.

    From a tier that was never measured it would be loaded as well.
    """
    recompute_ms = _ms(pace, token_count, (), 0)
    by_tier = {
        tier: _ms(pace, token_count, [(tier, stored_tokens)], stored_tokens) for tier in pace.tiers or {}
    }
    known = {tier: ms for tier, ms in by_tier.items() if ms is not None}
    if not stored_tokens or recompute_ms is None or not known:
        return None
    if _OBVIOUS * max(known.values()) > recompute_ms:
        return None
    return Plan(Decision.LOAD, None, None, None, recompute_ms, known)


def decide(
    pace: Pace, token_count: int, runs: Sequence[Run], stored_tokens: int, choice: Choice = Choice.AUTO
) -> Plan:
    """Choose for ``token_count`` tokens, of which ``stored_tokens`` were stored and ``runs`` are resident, gap-free.

    Loading restores the very KV, so it is right unless something else was measured to be clearly faster.
    Nothing known to be resident is no proof that nothing is: it is loaded then too.
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
    """Tokens of a prefill that is worth timing aside, so that the next plan knows; None for none.

    Two small ones of an engine that computed nothing yet. Beyond that only where recomputing may win: there
    each is at most twice as long as one that was measured, and no longer than the window, whose load
    takes about as long.
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
    """The last token is always computed: its answer is what the request is for."""
    computed = max(1, token_count - cut)
    return pace.ms(runs, token_count - computed, computed)
