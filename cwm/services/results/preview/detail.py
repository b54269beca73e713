"""The levels of detail of a JSON preview, from everything to almost nothing; the first that fits is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cwm.services.results.preview.ranks import Rank

DEEPEST: Final = 40
SPINE: Final = 6
"""Depth of the containers around the outermost lists, which every level shows."""
RECORD_FIELDS: Final = 64
"""An object with more keys is a map: its keys are data, and its entries are paged like those of a list."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is shown.

    ``text``: the most characters of one text, None for any number. ``items``: items of an outermost list; ``nested``:
    of a list in one of its items. ``rank``: the lowest rank of fields shown. ``depth``: of containers within an item,
    and in records outside of lists if it exceeds the spine. ``entries``: page the fields of every object, too.
    """

    text: int | None
    nested: int
    rank: Rank = Rank.IDLE
    depth: int = DEEPEST
    entries: bool = False
    items: int = 0


LEVELS: Final = (
    Detail(text=None, nested=1_000_000),
    Detail(text=2_000, nested=50),
    Detail(text=500, nested=10, depth=8),
    Detail(text=200, nested=5, rank=Rank.LONG, depth=5),
    Detail(text=120, nested=3, rank=Rank.LONG, depth=3),
    Detail(text=80, nested=2, rank=Rank.LONG, depth=2),
    Detail(text=80, nested=1, rank=Rank.SHORT, depth=1),
    Detail(text=60, nested=0, rank=Rank.TELLING, depth=0),
)
LAST: Final = (
    Detail(text=40, nested=4, depth=1, entries=True),
    Detail(text=40, nested=1, depth=0, entries=True),
    Detail(text=0, nested=0, depth=0, entries=True),
)
"""The levels for a value of which no item fits at any level above."""
PROJECTING: Final = 3
"""The first level at which fields are left out."""
