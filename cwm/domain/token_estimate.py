"""Estimates the tokens of a text too long to count whole, from counted slices, with an error bound.

This works for byte-level BPE vocabularies, which split a text into words before they split words into tokens.
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
"""Most characters counted in one call: the time of a call grows with the longest word in it."""

COUNTED_CHARS: Final = 262_144
"""A text of at most this length is counted whole."""

_SLICE_CHARS: Final = 256
_CUT_CHARS: Final = 1_024
_SLICES: Final = COUNTED_CHARS // (2 * _SLICE_CHARS)
_ERROR: Final = 0.015
_UNBALANCED: Final = 0.002
_LOOK_BACK_CHARS: Final = 512
# In every vocabulary, a word ends between a letter or digit and one of these.
_WORD_END: Final = re.compile(r"[^\W_](?=[\s,.:;!?()\[\]{}<>\"=，。、；：！？（）「」])")


@dataclass(frozen=True, slots=True)
class Measure:
    """Counts of a text or a slice. Text with few spaces is dense: attachments, tables, scripts without spaces."""

    chars: int
    spaces: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Line:
    """Tokens as a linear function of characters and spaces; ``error`` is the relative standard error.

    ``spaced``: spaces per character in the sample that it was fitted to.
    """

    per_char: float
    per_space: float
    spaced: float
    error: float


def count_whole(text: str, count: Count) -> int:
    return sum(count(chunk) for chunk in chunks(text))


def estimate(text: str, count: Count) -> int:
    """Count a short ``text`` whole; estimate a long one from evenly spread slices, rounded up by the standard error.

    Slices are added until their standard error is 1.5 %: a uniform text needs few, a mixed one many, at most the
    whole text. The same text always gives the same number.
    """
    slices, chars, spaces = _SLICES, len(text), text.count(" ")
    while chars > 2 * slices * _SLICE_CHARS:
        line = fitted([Measure(len(piece), piece.count(" "), count(piece)) for piece in spread(text, slices)])
        # If a sample has more spaces than the text, it may have missed the parts without spaces.
        if line.error <= _ERROR and line.spaced - spaces / chars <= _UNBALANCED:
            tokens = line.per_char * chars + line.per_space * spaces
            return math.ceil(tokens * (1 + line.error))
        slices = math.ceil(slices * min(max(1.5, 1.2 * (line.error / _ERROR) ** 2), chars))
    return count_whole(text, count)


def chunks(text: str) -> Iterator[str]:
    """``text`` in pieces of at most ``CHUNK_CHARS``, cut between words where possible."""
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = start + CHUNK_CHARS
        ends = [word.end() for word in _WORD_END.finditer(text, end - _LOOK_BACK_CHARS, end)]
        end = ends[-1] if ends else end
        yield text[start:end]
        start = end
    yield text[start:]


def spread(text: str, slices: int) -> Iterator[str]:
    """One slice from each of ``slices`` equal stretches.

    Offsets are pseudo-random, so that they cannot align with a pattern in ``text``.
    """
    stretch, places = len(text) / slices, random.Random(slices)  # noqa: S311 - repeatable, not secret
    for number in range(slices):
        start = int((number + places.random()) * stretch)
        yield text[_cut(text, start) : _cut(text, start + _SLICE_CHARS)]


def fitted(sample: Sequence[Measure]) -> Line:
    """The regression line through the mean of ``sample``. Without tokens, its error is infinite.

    The error is estimated from differences between neighbouring slices: over a whole text, parts may differ much
    more, and all of them are in the sample.
    """
    chars, tokens = sum(m.chars for m in sample), sum(m.tokens for m in sample)
    if not tokens:
        return Line(0, 0, 0, math.inf)
    per_char, spaced = tokens / chars, sum(m.spaces for m in sample) / chars
    more = [m.tokens - per_char * m.chars for m in sample]
    wider = [m.spaces - spaced * m.chars for m in sample]
    square = sum(x * x for x in wider)
    slope = sum(x * y for x, y in zip(wider, more, strict=True)) / square if square else 0.0
    residuals = [y - slope * x for x, y in zip(wider, more, strict=True)]
    squares = sum((after - before) ** 2 for before, after in pairwise(residuals))
    error = math.sqrt(len(sample) / (2 * (len(sample) - 1)) * squares) / tokens
    return Line(per_char - slope * spaced, slope, spaced, error)


def _cut(text: str, position: int) -> int:
    """The next place at or after ``position`` to cut at: the end of a word, or a multiple of ``_CUT_CHARS`` characters.

    A later position never gets an earlier cut: otherwise text with few words would be sampled less often.
    """
    last = min(len(text), (position // _CUT_CHARS + 1) * _CUT_CHARS)
    word = _WORD_END.search(text, position, last)
    return word.end() if word else last
