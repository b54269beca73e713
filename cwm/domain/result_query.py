"""Queries on a part of a stored result, and the answers that need only its text."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONG_LINE_CHARS: Final = 400
"""Of a longer line, only the surroundings of a match are shown."""

_EXCERPT_BYTES: Final = 160
_ELLIPSIS: Final = "…"
_GAP: Final = "--"


class QueryKind(StrEnum):
    JMESPATH = "jmespath"
    JSON_POINTER = "json_pointer"
    REGEX = "regex"
    SEARCH = "search"
    HEAD = "head"
    TAIL = "tail"
    COUNT = "count"


class Counted(StrEnum):
    LINES = "lines"
    ITEMS = "items"
    CHARACTERS = "characters"
    BYTES = "bytes"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Query:
    """A query. ``argument`` is the expression, the pattern or text, the unit to count, or a number of lines.

    ``context`` lines are shown around each match.
    """

    kind: QueryKind
    argument: str | int
    context: int = 0

    @property
    def told(self) -> str:
        """A unique text for this query: equal for equal queries only."""
        return json.dumps([self.kind, self.argument, self.context])


@dataclass(frozen=True, slots=True)
class QueryFindings:
    """``total`` counts lines, items or matches; ``complete`` is False when there may be more."""

    text: str
    total: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a text: ``start`` inclusive, ``end`` exclusive."""

    start: int
    end: int


def count_lines(body: bytes) -> int:
    """The number of lines as an editor counts them: a last line without a line feed counts too."""
    return body.count(b"\n") + (1 if body and not body.endswith(b"\n") else 0)


def head(body: bytes, lines: int) -> bytes:
    """The first ``lines`` lines, unchanged."""
    end = -1
    for _ in range(lines):
        end = body.find(b"\n", end + 1)
        if end < 0:
            return body
    return body[: end + 1]


def tail(body: bytes, lines: int) -> bytes:
    """The last ``lines`` lines, unchanged."""
    start = len(body) - 1 if body.endswith(b"\n") else len(body)
    for _ in range(lines):
        start = body.rfind(b"\n", 0, start)
        if start < 0:
            return body
    return body[start + 1 :]


class Lines:
    """Access to a text by line, counted from 0."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._starts = [0]
        at = body.find(b"\n")
        while at >= 0 and at + 1 < len(body):
            self._starts.append(at + 1)
            at = body.find(b"\n", at + 1)

    def __len__(self) -> int:
        return len(self._starts)

    def holding(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1

    def span(self, line: int) -> Span:
        """The line's byte range, without its line feed."""
        last = line + 1 >= len(self._starts)
        end = len(self._body) if last else self._starts[line + 1]
        if end > self._starts[line] and self._body[end - 1 : end] == b"\n":
            end -= 1
        return Span(self._starts[line], end)

    def shown(self, line: int, around: Span | None = None) -> str:
        """The whole line; of a long line, an excerpt around ``around``, or its beginning."""
        span = self.span(line)
        if span.end - span.start <= LONG_LINE_CHARS:
            return self._text(span)
        middle = around or Span(span.start, span.start)
        start = max(span.start, middle.start - _EXCERPT_BYTES)
        end = min(
            span.end, max(middle.start, min(middle.end, middle.start + _EXCERPT_BYTES)) + _EXCERPT_BYTES
        )
        before = "" if start == span.start else _ELLIPSIS
        after = "" if end == span.end else _ELLIPSIS
        return f"{before}{self._text(Span(start, end))}{after}"

    def _text(self, span: Span) -> str:
        """Decoded text. A character that is cut in the middle is dropped."""
        return self._body[span.start : span.end].decode(errors="ignore")


def matches_by_line(body: bytes, spans: Sequence[Span], context: int) -> str:
    """Matches in the format of ``grep -n``: ``12:text``, ``11-text`` for context, ``--`` between separate groups.

    A long line has one entry per match: ``12:3401:…text…``, with the byte at which the match starts, counted from
    1.
    """
    lines, entries, last = Lines(body), list[str](), -1
    line_numbers = sorted({lines.holding(span.start) for span in spans})
    is_matched = set(line_numbers)
    by_line: dict[int, list[Span]] = {}
    for span in spans:
        by_line.setdefault(lines.holding(span.start), []).append(span)
    for line in line_numbers:
        for each in range(max(line - context, last + 1), min(line + context + 1, len(lines))):
            if entries and context and each > last + 1:
                entries.append(_GAP)
            if each in is_matched:
                entries.extend(_entries(lines, each, by_line[each]))
            else:
                entries.append(f"{each + 1}-{lines.shown(each)}")
            last = each
    return "".join(f"{entry}\n" for entry in entries)


def _entries(lines: Lines, line: int, spans: Sequence[Span]) -> Iterator[str]:
    whole = lines.span(line)
    if whole.end - whole.start <= LONG_LINE_CHARS:
        yield f"{line + 1}:{lines.shown(line)}"
        return
    for span in spans:
        yield f"{line + 1}:{span.start - whole.start + 1}:{lines.shown(line, span)}"
