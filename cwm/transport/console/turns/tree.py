"""Lays out the turns of a session as a graph, the newest first: which lane each is in, and which lines pass it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.turn import Turn

MOST_LANES: Final = 8
"""Lines beyond are drawn in the last lane."""
TRUNK: Final = "trunk"
SIDE: Final = "side"
SUMMARY: Final = "summary"


@dataclass(frozen=True, slots=True)
class Line:
    """A line in a lane, of one kind: the main line, another one, or from a summary to what it stands for."""

    lane: int
    kind: str


@dataclass(slots=True)
class Row:
    """One turn. ``passing`` lines go by; those that come ``into`` it begin above, those ``out`` of it go on below."""

    turn: Turn
    lane: int
    passing: list[Line] = field(default_factory=list)
    into: list[Line] = field(default_factory=list)
    out: list[Line] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Strand:
    """What a lane leads down to."""

    turn_id: str
    kind: str


def rows(turns: Sequence[Turn], above: Sequence[Turn] = ()) -> list[Row]:
    """``turns`` of one page, the newest first. A line to a turn that is not among them goes down to the end.

    ``above``: the turns right before them, of the page before, from which lines come in at the top.
    """
    lanes: list[_Strand | None] = []
    laid: list[Row] = []
    drawn: set[str] = set()
    for turn in (*above, *turns):
        arriving = [at for at, strand in enumerate(lanes) if strand and strand.turn_id == turn.id]
        lane = arriving[0] if arriving else _free(lanes, 0 if turn.main else 1)
        row = Row(turn, _shown(lane))
        row.into = [Line(_shown(at), strand.kind) for at in arriving if (strand := lanes[at])]
        row.passing = [
            Line(_shown(at), strand.kind) for at, strand in enumerate(lanes) if strand and at not in arriving
        ]
        for at in arriving:
            lanes[at] = None
        drawn.add(turn.id)
        for nth, end in enumerate(_ends(turn, drawn)):
            place = _free(lanes, 1) if nth else lane
            lanes[place] = end
            row.out.append(Line(_shown(place), end.kind))
        laid.append(row)
    return laid[len(above) :]


def width(laid: Sequence[Row]) -> int:
    """How many lanes the rows have."""
    used = (line.lane for row in laid for line in (*row.passing, *row.into, *row.out))
    return max((*used, *(row.lane for row in laid)), default=0) + 1


def _ends(turn: Turn, drawn: set[str]) -> list[_Strand]:
    """What a turn came from, its parent first. One that was asked later is drawn already, and no line leads up."""
    strands = []
    if turn.parent is not None and turn.parent not in drawn:
        strands.append(_Strand(turn.parent, TRUNK if turn.main else SIDE))
    if turn.compacts is not None and turn.compacts not in drawn | {turn.parent}:
        strands.append(_Strand(turn.compacts, SUMMARY))
    return strands


def _free(lanes: list[_Strand | None], first: int) -> int:
    """The first free lane from ``first`` on, added if there is none."""
    for at in range(first, len(lanes)):
        if lanes[at] is None:
            return at
    while len(lanes) <= first:
        lanes.append(None)
    if lanes[-1] is not None:
        lanes.append(None)
    return len(lanes) - 1


def _shown(lane: int) -> int:
    return min(lane, MOST_LANES - 1)
