"""Where the paths of a projection have got to, at one place of a value."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from cwm.domain.field_paths import Step, parse_path

_DEEP: Final = ("**", True)


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
        """Paths that can't be read lead nowhere: whoever takes them from a person refuses them there."""
        readable: list[tuple[Step, ...]] = []
        for path in paths:
            with suppress(ValueError):
                readable.append(parse_path(path))
        return cls((path, 0) for path in readable)

    def at(self, name: str) -> Mask | None:
        """The mask for a field, None when no path leads through it."""
        if name not in self._steps:
            mask = Mask(
                (path, at if path[at] == _DEEP else at + 1)
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
        while at < len(path) and path[at] == _DEEP:
            at += 1
            yield path, at


def _matches(step: Step, name: str) -> bool:
    text, wild = step
    return wild or text == name


NOTHING: Final = Mask(())
"""Leads nowhere: of what it is put on, only what a schema requires stays."""
