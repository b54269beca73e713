"""Tokens of a text too long to count whole: slices of it, counted, and how far they may be off.

The rules hold for byte-level BPE vocabularies: they split a text into words before they split words into tokens.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

Count: TypeAlias = Callable[[str], int]

CHUNK_CHARS: Final = 16_384
"""Most characters counted in one go: what a count takes while it runs grows with the longest word in it."""

COUNTED_CHARS: Final = 262_144
"""A text up to so long is counted whole."""

_SLICE_CHARS: Final = 256
_CUT_CHARS: Final = 1_024
_SLICES: Final = COUNTED_CHARS // (2 * _SLICE_CHARS)
_ERROR: Final = 0.015
_LOOK_BACK_CHARS: Final = 512
# Whatever the vocabulary, a word ends between a letter or digit and one of these.
_WORD_END: Final = re.compile(r"[^\W_](?=[\s,.:;!?()\[\]{}<>\"=，。、；：！？（）「」])")


@dataclass(frozen=True, slots=True)
class Slice:
    chars: int
    tokens: int


def count_whole(text: str, count: Count) -> int:
    return sum(count(chunk) for chunk in chunks(text))


def estimate(text: str, count: Count) -> int:
    """``text`` counted whole where it is short; else by evenly spread slices, and about as much more as they may err.

    Slices are added until their standard error is 1.5 %, so a text of a kind takes few, and one in which kinds
    alternate takes many, at most the whole. The same text always gives the same number.
    """
    slices = _SLICES
    while len(text) > 2 * slices * _SLICE_CHARS:
        sample = [Slice(len(piece), count(piece)) for piece in spread(text, slices)]
        error = standard_error(sample)
        if error <= _ERROR:
            per_char = sum(s.tokens for s in sample) / sum(s.chars for s in sample)
            return math.ceil(len(text) * per_char * (1 + error))
        slices = math.ceil(slices * min(max(1.5, 1.2 * (error / _ERROR) ** 2), len(text)))
    return count_whole(text, count)


def chunks(text: str) -> Iterator[str]:
    """``text`` in pieces of at most ``CHUNK_CHARS``, cut between words where there are any."""
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = start + CHUNK_CHARS
        ends = [word.end() for word in _WORD_END.finditer(text, end - _LOOK_BACK_CHARS, end)]
        end = ends[-1] if ends else end
        yield text[start:end]
        start = end
    yield text[start:]


def spread(text: str, slices: int) -> Iterator[str]:
    """One slice of each of ``slices`` equal stretches, at places that fall into step with nothing in ``text``."""
    stretch, places = len(text) / slices, random.Random(slices)  # noqa: S311 - repeatable, not secret
    for number in range(slices):
        start = int((number + places.random()) * stretch)
        yield text[_cut(text, start) : _cut(text, start + _SLICE_CHARS)]


def standard_error(sample: Sequence[Slice]) -> float:
    """Of the tokens per character of ``sample``, relative; infinite without tokens.

    Told by how far neighbours differ: over a whole text its parts may differ much more, and all are in the sample.
    """
    tokens = sum(s.tokens for s in sample)
    if not tokens:
        return math.inf
    per_char = tokens / sum(s.chars for s in sample)
    residuals = [s.tokens - per_char * s.chars for s in sample]
    squares = sum((after - before) ** 2 for before, after in pairwise(residuals))
    return math.sqrt(len(sample) / (2 * (len(sample) - 1)) * squares) / tokens


def _cut(text: str, position: int) -> int:
    """The next place from ``position`` to cut at: the end of a word, or a multiple of so many characters.

    It never lies before that of an earlier position. Otherwise what has few words would be met less often.
    """
    last = min(len(text), (position // _CUT_CHARS + 1) * _CUT_CHARS)
    word = _WORD_END.search(text, position, last)
    return word.end() if word else last
