"""Canaries: short greedy continuations of a window, replayed to prove that restored KV equals the stored KV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cwm.domain.prefix import TokenIds

TOP_TOKENS: Final = 5
"""How many candidates' log-probabilities are stored for each token of a canary."""


class Verification(StrEnum):
    """The result of a replay.

    ``exact``: the same tokens. ``within_tolerance``: the tokens differ, but first at a near tie, which rounding
    alone can flip.
    """

    EXACT = "exact"
    WITHIN_TOLERANCE = "within_tolerance"
    MISMATCH = "mismatch"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Canary:
    """Tokens decoded greedily after a context.

    ``top`` has the likeliest candidates for each of these tokens: log-probability by token id.
    """

    token_ids: TokenIds
    top: tuple[Mapping[int, float], ...]

    def as_dict(self) -> dict[str, Any]:
        return {"token_ids": list(self.token_ids), "top": [dict(likeliest) for likeliest in self.top]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Canary:
        top = tuple({int(token): value for token, value in likeliest.items()} for likeliest in data["top"])
        return cls(tuple(data["token_ids"]), top)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a replay measured.

    ``deviation`` is the largest change of a log-probability, in nats, while the contexts were still equal;
    ``first_difference`` is the index of the first differing token, from 0, or None when all agree.
    """

    verification: Verification
    tokens_compared: int = 0
    first_difference: int | None = None
    deviation: float | None = None
    reason: str = ""


def compare(expected: Canary, replayed: Canary, tolerance: float) -> Evidence:
    """Compare a replay with the stored canary.

    ``tolerance`` is in nats: the change that summing in another order may cause.
    """
    compared = min(len(expected.token_ids), len(replayed.token_ids))
    pairs = zip(expected.token_ids, replayed.token_ids, strict=False)
    first = next((at for at, (old_id, new_id) in enumerate(pairs) if old_id != new_id), None)
    alike = compared if first is None else first + 1
    deviation = max((_deviation(expected, replayed, at) for at in range(alike)), default=0.0)
    if deviation > tolerance or compared < len(expected.token_ids):
        verdict = Verification.MISMATCH
    elif first is None:
        verdict = Verification.EXACT
    elif _was_a_tie(expected, replayed, first, tolerance):
        verdict = Verification.WITHIN_TOLERANCE
    else:
        verdict = Verification.MISMATCH
    return Evidence(verdict, compared, first, round(deviation, 6))


def _deviation(expected: Canary, replayed: Canary, at: int) -> float:
    """Largest change among the candidates that both sides list.

    Candidates that only one side lists are ignored: the last of the five may differ without meaning anything.
    """
    before, after = expected.top[at], replayed.top[at]
    return max((abs(before[token] - after[token]) for token in before.keys() & after.keys()), default=99.0)


def _was_a_tie(expected: Canary, replayed: Canary, at: int, tolerance: float) -> bool:
    candidates, token_id = expected.top[at], replayed.token_ids[at]
    return (
        token_id in candidates
        and abs(candidates[expected.token_ids[at]] - candidates[token_id]) <= 2 * tolerance
    )
