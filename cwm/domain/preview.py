"""Previews: what an agent gets instead of a tool result over budget, and how it is told about the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

_PHRASES: Final = 6
_NAMES: Final = 8
_OVER: Final = " It can be cut no further, and is over the budget."


class Unit(StrEnum):
    """The unit in which omitted content is counted."""

    PARTS = "parts"
    """Items of the result's ``content``."""
    ITEMS = "items"
    ENTRIES = "entries"
    """Entries of an object with so many keys that the keys are data."""
    FIELDS = "fields"
    LINES = "lines"
    WORDS = "words"
    CHARACTERS = "characters"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Omission:
    """At ``path``, the preview shows ``shown`` of ``total`` units; an empty path is the whole result.

    A path such as ``items[*].tags`` may match several ``places``: the figures are sums over them. ``names`` are the
    omitted fields, or the media type of omitted bytes.
    """

    path: str
    unit: Unit
    shown: int
    total: int
    places: int = 1
    names: tuple[str, ...] = ()

    def plus(self, other: Omission) -> Omission:
        """Merge two omissions of the same path and unit. Records of the same kind are counted once."""
        names = tuple(dict.fromkeys(self.names + other.names))
        if self.unit is Unit.FIELDS:
            shown, total = max(self.shown, other.shown), max(self.total, other.total)
        else:
            shown, total = self.shown + other.shown, self.total + other.total
        return replace(self, shown=shown, total=total, places=self.places + other.places, names=names)

    @property
    def phrase(self) -> str:
        """For example ``items 20 of 4,000`` or ``items[*] without body, etag (2 of 9 fields)``."""
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
    """A name from somebody else's data, on one line and at most ``limit`` characters long."""
    plain = " ".join(name.split())
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


@dataclass(frozen=True, slots=True)
class Account:
    """What a preview of ``tokens`` tokens omits.

    ``over_budget`` is set when the tool's output schema, or the size of the budget itself, allowed no smaller
    preview.
    """

    omissions: tuple[Omission, ...]
    tokens: int
    over_budget: bool = False

    @property
    def line(self) -> str:
        """One sentence for a model, for example ``Shown: items 20 of 4,000; items[*].body 90 of 812 words.``"""
        if not self.omissions:
            return f"Shown: all of it.{_OVER if self.over_budget else ''}"
        phrases = [omission.phrase for omission in self.omissions[:_PHRASES]]
        if (more := len(self.omissions) - _PHRASES) > 0:
            phrases.append(f"{more:,} other {'cut' if more == 1 else 'cuts'}")
        return f"Shown: {'; '.join(phrases)}.{_OVER if self.over_budget else ''}"


@dataclass(frozen=True, slots=True)
class Preview:
    """``content`` and ``structured`` replace the result's own.

    ``structured`` is None when the result had no structured content.
    """

    content: tuple[Mapping[str, Any], ...]
    structured: Any
    account: Account
