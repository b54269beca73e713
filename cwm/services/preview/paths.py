"""Paths of the fields that a projection keeps: ``id``, ``user.login``, ``items[*].name``, ``*.size``, ``**.id``.

Lists are stepped through wherever they are, so ``[*]`` may be left out. ``*`` is any one field, ``**`` any
number of them. A name with a dot or a bracket in it stands in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_DEEP: Final = "**"
_STEP: Final = re.compile(r'\[\*\]|(?P<dot>\.?)(?:"(?P<quoted>[^"]+)"|(?P<name>[^.\[\]"*]+)|(?P<wild>\*\*?))')


Step = tuple[str, bool]
"""A name and whether it is a wildcard."""


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises ValueError, which says where it can't be read."""
    steps: list[Step] = []
    start = at = 2 if text.startswith("$.") else 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (match["dot"] is not None and bool(match["dot"]) != (at > start)):
            raise ValueError(f"the path {text!r} can't be read from character {at + 1} on")
        if (name := match["quoted"] or match["name"]) is not None:
            steps.append((name, False))
        elif match["wild"]:
            steps.append((match["wild"], True))
        at = match.end()
    if not steps:
        raise ValueError(f"the path {text!r} names no field")
    return tuple(steps)


class Mask:
    """Where several paths have got to, at one place of a value."""

    def __init__(self, states: Iterable[tuple[tuple[Step, ...], int]]) -> None:
        self._states = tuple(dict.fromkeys(_closed(states)))
        self._steps: dict[str, Mask | None] = {}
        self.selects = any(at == len(path) for path, at in self._states)
        """Whether what is at this place was asked for, with all that is in it."""
        self.wild = any(at < len(path) and path[at][1] for path, at in self._states)
        """Whether any field may be the next."""

    @classmethod
    def of(cls, paths: Iterable[str]) -> Mask:
        return cls((parse_path(path), 0) for path in paths)

    def at(self, name: str) -> Mask | None:
        """The mask for a field, None when no path leads through it."""
        if name not in self._steps:
            mask = Mask(
                (path, at if path[at] == (_DEEP, True) else at + 1)
                for path, at in self._states
                if at < len(path) and _matches(path[at], name)
            )
            self._steps[name] = mask if mask._states else None
        return self._steps[name]


def _closed(states: Iterable[tuple[tuple[Step, ...], int]]) -> Iterable[tuple[tuple[Step, ...], int]]:
    """With the states that ``**`` reaches by standing for no field at all."""
    for path, start in states:
        yield path, start
        at = start
        while at < len(path) and path[at] == (_DEEP, True):
            at += 1
            yield path, at


def _matches(step: Step, name: str) -> bool:
    text, wild = step
    return wild or text == name


NOTHING: Final = Mask(())
"""Leads nowhere: of what it is put on, only what a schema requires stays."""
