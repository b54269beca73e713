"""Shortens one text to whole sentences or whole lines, with a note of how much is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

from cwm.domain.preview import Unit
from cwm.domain.tool_policy import PreviewKind
from cwm.services.results.preview.text.cuts import (
    Shortened,
    Span,
    amount,
    counted,
    cut_after,
    cut_before,
    unit_of,
)
from cwm.services.results.preview.text.lines import Lines
from cwm.services.results.preview.text.sentences import sentences
from cwm.services.results.preview.text.styles import Style, style_of

_LOOKED_AT: Final = 32_768
_SEARCHED: Final = 1_000_000
_AROUND: Final = 400
_HITS: Final = 16
_GAP: Final = " … "
_WORTH_CUTTING: Final = 60


class Text:
    """A text that may be shortened several times; its analysis is kept."""

    def __init__(
        self, whole: str, kind: PreviewKind = PreviewKind.AUTO, keywords: Sequence[str] = ()
    ) -> None:
        self._whole = whole
        self._kind = kind
        words = "|".join(re.escape(keyword) for keyword in keywords if keyword.strip())
        self._keyword = re.compile(words, re.IGNORECASE) if words else None
        self._looked_at = 0
        self._sentences: list[Span] = []
        self._keyword_sentences: dict[int, None] = {}

    def shorten(self, limit: int) -> Shortened | None:
        """Shorten to about ``limit`` characters, at least to the note of what is missing; None if that is not shorter."""
        if len(self._whole) <= limit:
            return None
        short = self._lines.shorten(limit, self._style) if self._style is not Style.EXTRACT else None
        short = short or self._by_sentences(limit)
        return short if len(short.text) < len(self._whole) else None

    @cached_property
    def _style(self) -> Style:
        return style_of(self._whole, self._kind)

    @cached_property
    def _unit(self) -> Unit:
        return unit_of(self._whole)

    @cached_property
    def _total(self) -> int:
        return amount(self._whole, self._unit)

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self._whole, amount(self._whole, Unit.LINES), self._keyword)

    def _look(self, room: int) -> None:
        """Find the sentences that may be shown: those at the beginning, and later ones with a keyword."""
        end = _LOOKED_AT if self._keyword else min(2 * room, _LOOKED_AT)
        if end > self._looked_at:
            self._looked_at = end
            near = sentences(self._whole, 0, end)
            far = (span for span in self._far() if not near or span[0] >= near[-1][1])
            self._sentences = near + list(far)
            self._keyword_sentences = self._with_keyword()

    def _far(self) -> Iterator[Span]:
        if self._keyword is None:
            return
        end = 0
        for hit in islice(self._keyword.finditer(self._whole, _LOOKED_AT, _SEARCHED), _HITS):
            if hit.start() >= end:
                start, end = max(hit.start() - _AROUND, end, _LOOKED_AT), hit.end() + _AROUND
                spans = sentences(self._whole, start, end)
                yield from (span for span in spans if self._keyword.search(self._whole, *span))

    def _by_sentences(self, limit: int) -> Shortened:
        room = limit - len(counted(self._total, self._unit, "earlier")) - len(" … []")
        if self._style is Style.TAIL:
            start = cut_before(self._whole, room)
            return self._marked([(start, len(self._whole))])
        spans = self._chosen(room) or [(0, cut_after(self._whole, room))]
        return self._marked(spans)

    def _chosen(self, room: int) -> list[Span]:
        """The first sentence, those with a keyword, then those after the first, as many as fit."""
        self._look(room)
        spans = self._sentences
        if not spans or spans[0][1] > room:
            return []
        indices = {0}
        room -= spans[0][1]
        for index in self._in_order():
            follows = index - 1 in indices
            cost = spans[index][1] - (spans[index - 1][1] if follows else spans[index][0] - len(_GAP))
            if cost <= room:
                indices.add(index)
                room -= cost
            elif follows and index not in self._keyword_sentences:
                return self._with_part(
                    _joined(spans, sorted(indices)), spans[index - 1][1], spans[index], room
                )
        return _joined(spans, sorted(indices))

    def _with_keyword(self) -> dict[int, None]:
        """Sentences with a keyword, by index."""
        if self._keyword is None:
            return {}
        hits = (self._keyword.search(self._whole, *span) for span in self._sentences)
        return {index: None for index, hit in enumerate(hits) if hit}

    def _in_order(self) -> list[int]:
        """The sentences after the first, by importance: those with a keyword come first."""
        rest = range(1, len(self._sentences))
        return [i for i in self._keyword_sentences if i] + [
            i for i in rest if i not in self._keyword_sentences
        ]

    def _with_part(self, spans: list[Span], last: int, sentence: Span, room: int) -> list[Span]:
        """``spans`` extended, after the span that ends at ``last``, by the beginning of a sentence that did not fit."""
        end = last + cut_after(self._whole[last : sentence[1]], room)
        if end - sentence[0] < _WORTH_CUTTING:
            return spans
        return [(start, end if till == last else till) for start, till in spans]

    def _marked(self, spans: list[Span]) -> Shortened:
        unit, total = self._unit, self._total
        parts = [self._whole[start:end] for start, end in spans]
        amount_shown = sum(amount(part, unit) for part in parts)
        if amount_shown >= total:
            unit, total, amount_shown = Unit.CHARACTERS, len(self._whole), sum(map(len, parts))
        if self._style is Style.TAIL:
            text = f"[{counted(total - amount_shown, unit, 'earlier')}] … {parts[0]}"
        else:
            text = f"{_GAP.join(parts)} … [{counted(total - amount_shown, unit, 'more')}]"
        return Shortened(text.strip(), unit, amount_shown, total)


def _joined(spans: list[Span], indices: list[int]) -> list[Span]:
    """The spans of these sentences; consecutive ones become one span with the space between them."""
    longer_spans: list[Span] = []
    last = -2
    for index in indices:
        start, end = spans[index]
        if index == last + 1:
            start = longer_spans.pop()[0]
        longer_spans.append((start, end))
        last = index
    return longer_spans
