"""Sums up what was left out, by the kind of place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from cwm.domain.preview import Omission, Unit

Path = tuple[Any, ...]
"""``(path of the container, name)``, ``()`` for the whole value; the name is EACH for an item or an entry of a map."""
EACH: Final = None
_PLAIN: Final = re.compile(r"[^.\[\]\"*\s]+")


@dataclass(slots=True)
class _Sum:
    shown: int = 0
    total: int = 0
    places: int = 0


@dataclass(slots=True)
class Omitted:
    _sums: dict[tuple[Path, Unit], _Sum] = field(default_factory=dict)
    _fields: dict[Path, dict[str, None]] = field(default_factory=dict)
    _left_out: dict[Path, dict[str, None]] = field(default_factory=dict)

    def add(self, path: Path, unit: Unit, shown: int, total: int) -> None:
        entry = self._sums.setdefault((path, unit), _Sum())
        entry.shown += shown
        entry.total += total
        entry.places += 1

    def add_fields(self, path: Path, fields: dict[str, Any], left_out: list[str]) -> None:
        """Add a record's fields; places of one kind count as one, with the fields of all of them."""
        self._fields.setdefault(path, {}).update(dict.fromkeys(fields))
        self._left_out.setdefault(path, {}).update(dict.fromkeys(left_out))

    def texts_cut(self) -> bool:
        return any(unit not in {Unit.ITEMS, Unit.ENTRIES} for _, unit in self._sums)

    def omissions(self) -> tuple[Omission, ...]:
        """All omissions, those of outer places first."""
        omissions = [
            (path, Omission(shown_path(path), unit, s.shown, s.total, s.places))
            for (path, unit), s in self._sums.items()
        ]
        for path, names in self._left_out.items():
            fields = self._fields[path]
            missing_names = tuple(name for name in names if name not in fields)
            if missing_names:
                shown, total = len(fields), len(fields) + len(missing_names)
                omissions.append(
                    (path, Omission(shown_path(path), Unit.FIELDS, shown, total, names=missing_names))
                )
        return tuple(omission for _, omission in sorted(omissions, key=lambda each: _length(each[0])))


def shown_path(path: Path) -> str:
    """The path in the form of ``result_query`` and a policy's ``fields``: ``items[*].user.login``."""
    names: list[Any] = []
    while path:
        path, name = path
        names.append(name)
    text = ""
    for name in reversed(names):
        if name is EACH:
            text += "[*]"
        else:
            plain = name if _PLAIN.fullmatch(name) else f'"{name}"'
            text += f".{plain}" if text else plain
    return text


def _length(path: Path) -> int:
    length = 0
    while path:
        path, length = path[0], length + 1
    return length
