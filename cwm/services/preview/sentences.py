"""Where sentences of a text begin and end."""

from __future__ import annotations

import re
from typing import Final

_SAMPLE: Final = 2_000
_SCRIPTS: Final = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("hy", re.compile(r"[\u0530-\u058f]")),
)

Span = tuple[int, int]


def sentences(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """Spans of the sentences between ``start`` and ``end``, in order, without the white space around them."""
    from sentencex import segment

    part = text[start:end]
    spans: list[Span] = []
    at = 0
    for sentence in segment(_language(part), part):
        if (plain := sentence.strip()) and (found := part.find(plain, at)) >= 0:
            at = found + len(plain)
            spans.append((start + found, start + at))
    return spans


def _language(text: str) -> str:
    """By script alone: it decides which abbreviations end no sentence. ``en`` where the script tells nothing."""
    sample = text[:_SAMPLE]
    for language, letters in _SCRIPTS:
        if len(letters.findall(sample)) * 5 > len(sample):
            return language
    return "en"
