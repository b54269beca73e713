"""Wrong KV that opens: chunks whose contents are another's, sealed under the right name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from cwm_bench.harness.damage import Copies, Forger
from cwm_bench.proof.parts import Layout


class Planted(StrEnum):
    """What a chunk's KV is replaced by.

    ``other_text``: the KV of another text. ``shifted``: that of the chunk beside. ``not_restored``: zeros. ``stale``: that of the same tokens
    at the same places after another beginning. ``canary_from_load``: of another text, and the canary was recorded on it after it had been loaded.
    ``not_held``: its second half is another text's, as where blocks are written again while they are stored.
    """

    OTHER_TEXT = "other_text"
    SHIFTED = "shifted"
    NOT_RESTORED = "not_restored"
    STALE = "stale"
    CANARY_FROM_LOAD = "canary_from_load"
    NOT_HELD = "not_held"


@dataclass(frozen=True, slots=True)
class Case:
    """What is planted, and how far into the window: from 0, its first chunk, to 1, its last."""

    planted: Planted
    share: float

    def chunk(self, chunks: int) -> int:
        return round(self.share * (chunks - 1))


def deal(count: int, layout: Layout, random: Random) -> list[Case]:
    """Cases of every kind in turn; the first chunk, the last one and any one between are as frequent as each other.

    Behind a few windows KV does not depend on the beginning of a text, so that there only the first chunk can be stale.
    """
    kinds = list(Planted)
    cases = [
        Case(kinds[number % len(kinds)], random.choice((0.0, 1.0, random.random())))
        for number in range(count)
    ]
    is_short_sighted = layout is Layout.WINDOWS
    return [
        replace(each, share=0.0) if is_short_sighted and each.planted is Planted.STALE else each
        for each in cases
    ]


def forged(planted: Planted, chunk: int, forger: Forger, mine: Copies, other: Copies) -> bytes:
    """The new value of the chunk. ``other`` is a window of another text; for ``stale`` one that differs from ``mine`` in its first tokens alone."""
    name, value = mine.names[chunk], mine.values[chunk]
    if planted is Planted.NOT_RESTORED:
        return forger.zeroed(value, name)
    if planted is Planted.SHIFTED:
        source, at = mine, chunk - 1 if chunk else min(1, len(mine.names) - 1)
    else:
        source, at = other, min(chunk, len(other.names) - 1)
    if planted is Planted.NOT_HELD:
        return forger.half_forged((value, name), (source.values[at], source.names[at]))
    return forger.forged(source.values[at], source.names[at], name)
