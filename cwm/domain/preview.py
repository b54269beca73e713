"""What stands in for a tool result over its budget, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

_PHRASES: Final = 6
_NAMES: Final = 8
_OVER: Final = " It can be cut no further, and is over the budget."


class Unit(StrEnum):
    """What is counted where something was left out."""

    PARTS = "parts"
    """Items of the result's ``content``."""
    ITEMS = "items"
    ENTRIES = "entries"
    """Of an object with so many keys that they are data."""
    FIELDS = "fields"
    LINES = "lines"
    WORDS = "words"
    CHARACTERS = "characters"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Omission:
    """Of ``total`` at ``path``, ``shown`` are in the preview; an empty path is the whole result.

    A path such as ``items[*].tags`` may lead to several ``places``: the figures are their sums. ``names`` are
    the fields left out, or the media type of bytes.
    """

    path: str
    unit: Unit
    shown: int
    total: int
    places: int = 1
    names: tuple[str, ...] = ()

    def plus(self, other: Omission) -> Omission:
        """Both, where they are of one path and unit. Records of one kind count once."""
        names = tuple(dict.fromkeys(self.names + other.names))
        if self.unit is Unit.FIELDS:
            shown, total = max(self.shown, other.shown), max(self.total, other.total)
        else:
            shown, total = self.shown + other.shown, self.total + other.total
        return replace(self, shown=shown, total=total, places=self.places + other.places, names=names)

    @property
    def phrase(self) -> str:
        """Such as ``items 20 of 4,000``, or ``items[*] without body, etag (2 of 9 fields)``."""
        path = _short(self.path, 80)
        if self.unit is Unit.FIELDS:
            return (
                f"{path or 'top level'} without {self._names} ({len(self.names):,} of {self.total:,} fields)"
            )
        what = f"{self.shown:,} of {self.total:,}"
        if not self.path or self.unit not in {Unit.ITEMS, Unit.ENTRIES}:
            what += f" {self.unit}"
        if path:
            what = f"{path} {what}"
        if self.places > 1:
            what += f" in {self.places:,} places"
        return f"{what} ({self._names})" if self.names else what

    @property
    def _names(self) -> str:
        more = len(self.names) - _NAMES
        return ", ".join(_short(name, 40) for name in self.names[:_NAMES]) + (
            f" and {more:,} more" if more > 0 else ""
        )


def _short(name: str, limit: int) -> str:
    """A name of somebody else's making, fit for a line."""
    plain = " ".join(name.split())
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


@dataclass(frozen=True, slots=True)
class Account:
    """What a preview of ``tokens`` shows of what.

    ``over_budget`` when the tool's output schema, or the budget's own size, allowed nothing small enough.
    """

    omissions: tuple[Omission, ...]
    tokens: int
    over_budget: bool = False

    @property
    def line(self) -> str:
        """One sentence for a model, such as ``Shown: items 20 of 4,000; items[*].body 90 of 812 words.``"""
        if not self.omissions:
            return f"Shown: all of it.{_OVER if self.over_budget else ''}"
        phrases = [omission.phrase for omission in self.omissions[:_PHRASES]]
        if (more := len(self.omissions) - _PHRASES) > 0:
            phrases.append(f"{more:,} other {'cut' if more == 1 else 'cuts'}")
        return f"Shown: {'; '.join(phrases)}.{_OVER if self.over_budget else ''}"


@dataclass(frozen=True, slots=True)
class Preview:
    """``content`` and ``structured`` take the place of the result's own; None where it had no structured content."""

    content: tuple[Mapping[str, Any], ...]
    structured: Any
    account: Account
