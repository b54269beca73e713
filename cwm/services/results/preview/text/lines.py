"""Shortens a text to whole lines: its beginning and end, and lines with a keyword between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from cwm.domain.preview import Unit
from cwm.services.results.preview.text.cuts import Shortened, Span, counted
from cwm.services.results.preview.text.styles import Style

_SEARCHED: Final = 1_000_000
_HITS: Final = 1_000
_GAP: Final = "\n…\n"
_HEAD_SHARE: Final = {Style.HEAD: 1.0, Style.TAIL: 0.0, Style.ENDS: 1 / 3}


@dataclass(frozen=True, slots=True)
class Lines:
    """A text of ``count`` lines, and the keyword to look for."""

    whole: str
    count: int
    keyword: re.Pattern[str] | None

    def shorten(self, limit: int, style: Style) -> Shortened | None:
        """Shorten to at most ``limit`` characters; None if not even one whole line fits."""
        room = limit - len(counted(self.count, Unit.LINES, "earlier")) - len("\n… [] …\n")
        hits = list(self._with_keyword(room // 2))
        room -= sum(end - start + len(_GAP) for start, end in hits)
        first = self._first(int(room * _HEAD_SHARE[style]))
        last = self._last(room - (first[1] if first else 0)) if style is not Style.HEAD else None
        after, before = first[1] if first else -1, last[0] if last else len(self.whole)
        between = [span for span in hits if after < span[0] and span[1] < before]
        spans = list(_joined([first] if first else [], between, [last] if last else []))
        line_count = sum(self.whole.count("\n", start, end) + 1 for start, end in spans)
        if not spans or line_count >= self.count:
            return None
        return Shortened(
            self._marked(spans, line_count, at_end=last is not None), Unit.LINES, line_count, self.count
        )

    def _marked(self, spans: list[Span], line_count: int, *, at_end: bool) -> str:
        """The lines with their gaps: the first gap states the number of missing lines, the others are an ellipsis."""
        missing_count = self.count - line_count
        parts = [self.whole[start:end] for start, end in spans]
        if not at_end:
            return f"{_GAP.join(parts)}\n… [{counted(missing_count, Unit.LINES, 'more')}]"
        if spans[0][0] > 0:
            return f"[{counted(missing_count, Unit.LINES, 'earlier')}] …\n{_GAP.join(parts)}"
        return f"{parts[0]}\n… [{counted(missing_count, Unit.LINES, 'more')}] …\n{_GAP.join(parts[1:])}"

    def _first(self, room: int) -> Span | None:
        end = self.whole.rfind("\n", 0, room + 1) if room > 0 else -1
        return (0, end) if end > 0 else None

    def _last(self, room: int) -> Span | None:
        end = len(self.whole) - self.whole.endswith("\n")
        start = self.whole.find("\n", max(end - room - 1, 0), end) if room > 0 else -1
        return (start + 1, end) if start >= 0 else None

    def _with_keyword(self, room: int) -> Iterator[Span]:
        """The first lines with a keyword, as many as fit."""
        if self.keyword is None:
            return
        end = -1
        for hit in islice(self.keyword.finditer(self.whole, 0, _SEARCHED), _HITS):
            if hit.start() > end:
                start = self.whole.rfind("\n", 0, hit.start()) + 1
                end = self.whole.find("\n", hit.end())
                end = end if end >= 0 else len(self.whole)
                room -= end - start + len(_GAP)
                if room < 0:
                    return
                yield start, end


def _joined(*groups: list[Span]) -> Iterator[Span]:
    """The spans in order; consecutive lines become one span."""
    last: Span | None = None
    for start, end in (span for group in groups for span in group):
        if last is not None and start == last[1] + 1:
            last = (last[0], end)
        else:
            if last is not None:
                yield last
            last = (start, end)
    if last is not None:
        yield last
