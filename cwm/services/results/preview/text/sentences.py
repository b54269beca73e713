"""Finds the sentences of a text."""

from __future__ import annotations

import re
from typing import Final

from cwm.services.results.preview.text.cuts import Span

_SAMPLE: Final = 2_000
_BLOCK: Final = 2_048
"""Characters handled at a time: without spaces the time of sentencex grows with their square."""
_SCRIPTS: Final = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("hy", re.compile(r"[\u0530-\u058f]")),
)


def sentences(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """The spans of the sentences between ``start`` and ``end``, in order, without surrounding white space."""
    end = len(text) if end is None else min(end, len(text))
    language = _language(text[start : start + _SAMPLE])
    spans: list[Span] = []
    while start < end:
        block = _block(text[start : min(start + _BLOCK, end)], language)
        if start + _BLOCK < end and len(block) > 1:
            block.pop()  # it may go on
        spans += ((start + first, start + last) for first, last in block)
        start = spans[-1][1] if block and start + _BLOCK < end else start + _BLOCK
    return spans


def _block(text: str, language: str) -> list[Span]:
    from sentencex import segment

    spans: list[Span] = []
    at = 0
    for sentence in segment(language, text):
        if (plain := sentence.strip()) and (start := text.find(plain, at)) >= 0:
            at = start + len(plain)
            spans.append((start, at))
    return spans


def _language(sample: str) -> str:
    """The language by script alone, which decides which abbreviations end no sentence; ``en`` by default."""
    if sample.isascii():
        return "en"
    for language, letters in _SCRIPTS:
        if len(letters.findall(sample)) * 5 > len(sample):
            return language
    return "en"
