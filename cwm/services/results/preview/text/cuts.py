"""Cuts a text between words or characters, and states how much is missing."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from cwm.domain.preview import Unit

_JOINER: Final = "\u200d"
_LONGEST_CLUSTER: Final = 32
_WORD_LENGTH: Final = 16
_NEAR: Final = 0.15
_SPACE: Final = re.compile(r"\s")

Span = tuple[int, int]
"""Start and end of a part of a text."""


@dataclass(frozen=True, slots=True)
class Shortened:
    """A shortened text with ``shown`` of ``total`` units; a note at the cut states how many are missing."""

    text: str
    unit: Unit
    shown: int
    total: int


def unit_of(text: str) -> Unit:
    """Words, or characters for scripts without spaces and for encoded data."""
    sample = text[:4096]
    words = len(sample.split())
    return Unit.WORDS if len(sample) <= _WORD_LENGTH * max(words, 1) else Unit.CHARACTERS


def amount(text: str, unit: Unit) -> int:
    """The number of words, characters or lines."""
    if unit is Unit.WORDS:
        return len(text.split())
    if unit is Unit.LINES:
        return text.count("\n") + (not text.endswith("\n") and bool(text))
    return len(text)


def counted(number: int, unit: Unit, which: str) -> str:
    """A note such as ``1,234 more words``."""
    return f"{number:,} {which} {unit if number != 1 else unit.removesuffix('s')}"


def cut_after(text: str, limit: int) -> int:
    """The end of a cut of at most ``limit`` characters: after a word if one ends near, else after a whole character."""
    if limit >= len(text):
        return len(text)
    if limit <= 0:
        return 0
    at = limit
    if not _SPACE.match(text, at):
        near = max(text.rfind(white, int(limit * (1 - _NEAR)), limit) for white in " \n\t")
        at = near if near > 0 else _whole(text, limit)
    return len(text[:at].rstrip())


def cut_before(text: str, limit: int) -> int:
    """The start of a cut that leaves at most the last ``limit`` characters."""
    start = len(text) - limit
    if start <= 0:
        return 0
    if start >= len(text):
        return len(text)
    near = _SPACE.search(text, start - 1, start + int(limit * _NEAR) + 1)
    if near is not None:
        return near.end()
    while start < len(text) and _inside(text, start):
        start += 1
    return start


def _whole(text: str, at: int) -> int:
    """The last position up to ``at`` that is not inside a combined character."""
    for place in range(at, max(at - _LONGEST_CLUSTER, 0), -1):
        if not _inside(text, place):
            return place
    return at


def _inside(text: str, at: int) -> bool:
    """Whether ``at`` is inside what a reader sees as one character."""
    before, after = text[at - 1 : at], text[at : at + 1]
    if not before or not after:
        return False
    if _JOINER in {before, after} or unicodedata.category(after).startswith("M"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or (before == "\r" and after == "\n"):
        return True
    return _flag(before) and _flag(after) and _flags_before(text, at) % 2 == 1


def _flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flags_before(text: str, at: int) -> int:
    start = at
    while start > 0 and _flag(text[start - 1]):
        start -= 1
    return at - start
