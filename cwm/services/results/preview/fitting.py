"""Finds the most of a value that fits a budget, with reductions measured in characters and few token counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from cwm.domain.json_text import compact_json
from cwm.ports.token_counter import TokenCounter
from cwm.services.results.preview.detail import LAST, LEVELS, Detail
from cwm.services.results.preview.omitted import Omitted
from cwm.services.results.preview.reduction import Reduction, TooLargeError

_FIRST_GUESS: Final = 3.0
"""Characters a token, until the first count gives a better figure."""
_GROWTHS: Final = 3
_ENOUGH: Final = 0.88
"""The share of a budget from which on another try is not worth it."""
_MARGIN: Final = 0.97
_STEPS: Final = 8
_UNBOUNDED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Fitted:
    """A reduced value, counted as ``text``. ``fits`` is False if even the smallest form is over the budget."""

    value: Any
    text: str
    tokens: int
    omitted: Omitted
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reduced value. ``longest``: length of the longest list whose number of items the detail limits."""

    value: Any
    text: str
    omitted: Omitted
    longest: int = 0


def fit(within: Callable[[int], Candidate], budget: int, counter: TokenCounter) -> Fitted:
    """The largest candidate of at most ``budget`` tokens; ``within`` makes one of a given number of characters."""
    best: Fitted | None = None
    room, number = int(budget * _FIRST_GUESS), 0
    while True:
        number += 1
        candidate = within(room)
        length, tokens = len(candidate.text), counter.count(candidate.text)
        attempt = Fitted(candidate.value, candidate.text, tokens, candidate.omitted, tokens <= budget)
        likely = int(budget * length / max(tokens, 1) * _MARGIN**number)
        if attempt.fits:
            best = attempt
            if tokens >= _ENOUGH * budget or likely <= room or number > _GROWTHS:
                return best
            room = likely
        elif best is not None:
            return best
        elif length > room or length <= 1:
            return attempt
        else:
            room = min(likely, length - 1)


@dataclass(slots=True)
class JsonWithin:
    """Reduces one JSON value to a number of characters.

    Details are left out before a list has fewer than ``wanted`` items, down to the last of ``levels``. ``render`` makes
    the text that is measured.
    """

    reduction: Reduction
    wanted: int
    levels: Sequence[Detail] = LEVELS
    render: Callable[[Any], str] = compact_json
    _candidates: dict[Detail, Candidate] = field(default_factory=dict)

    def __call__(self, room: int) -> Candidate:
        """The largest candidate of at most ``room`` characters, or the smallest possible one."""
        level = self._first_level(room)
        if level is None:
            return self._fewer_items(room)
        detail, candidate = level
        detail, candidate = self._grow(detail, candidate, room, "items", candidate.longest + 1)
        if detail.text is not None and candidate.omitted.texts_cut():
            _, candidate = self._grow(detail, candidate, room, "text", room)
        return candidate

    def _make(self, detail: Detail, room: int) -> Candidate | None:
        """The candidate at this detail, or None if it is larger than ``room``."""
        candidate = self._candidates.get(detail)
        if candidate is None:
            try:
                candidate = self._candidates[detail] = self._reduced(detail, room)
            except TooLargeError:
                return None
        return candidate if len(candidate.text) <= room else None

    def _first_level(self, room: int) -> tuple[Detail, Candidate] | None:
        """The most detailed level at which ``wanted`` items fit."""
        low, high = 0, len(self.levels)
        best: tuple[Detail, Candidate] | None = None
        while low < high:
            middle = (low + high) // 2
            detail = replace(self.levels[middle], items=self.wanted)
            if (candidate := self._make(detail, room)) is not None:
                best, high = (detail, candidate), middle
            else:
                low = middle + 1
        return best

    def _fewer_items(self, room: int) -> Candidate:
        for detail in (self.levels[-1], *LAST):
            low, high = 0, self.wanted + 1
            best: Candidate | None = None
            while high - low > 1:
                middle = (low + high) // 2
                if (candidate := self._make(replace(detail, items=middle), room)) is not None:
                    best, low = candidate, middle
                else:
                    high = middle
            if best is not None:
                return best
        return self._reduced(LAST[-1], _UNBOUNDED)

    def _reduced(self, detail: Detail, room: int) -> Candidate:
        value, omitted = self.reduction.to(detail, room)
        return Candidate(value, self.render(value), omitted, self.reduction.longest)

    def _grow(
        self, detail: Detail, candidate: Candidate, room: int, measure: Literal["items", "text"], high: int
    ) -> tuple[Detail, Candidate]:
        """Increase one measure of the detail to near the largest that fits: ``high`` is too large."""
        low = getattr(detail, measure)
        unit_size, has_failed = len(candidate.text) / max(low, 1), False
        for _ in range(_STEPS):
            size = len(candidate.text)
            if high - low <= 1 or size >= _ENOUGH * room:
                break
            step = low + max(int((room - size) * _MARGIN / max(unit_size, 0.01)), 1)
            if step >= high:
                step = (low + high) // 2 if has_failed else high - 1
            more = replace(detail, **{measure: step})
            larger = self._make(more, room)
            if larger is None:
                high, has_failed = step, True
            else:
                unit_size = (len(larger.text) - size) / (step - low)
                low, detail, candidate = step, more, larger
        return detail, candidate
