"""Masks: the progress of a projection's paths at one place of a value."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from cwm.domain.field_paths import Step, parse_path

_DEEP: Final = ("**", True)


class Mask:
    """The progress of several paths at one place of a value."""

    def __init__(self, states: Iterable[tuple[tuple[Step, ...], int]]) -> None:
        self._states = tuple(dict.fromkeys(_closed(states)))
        self._steps: dict[str, Mask | None] = {}
        self.selects = any(at == len(path) for path, at in self._states)
        """Whether a path ends here, so that this place is selected with all its contents."""
        self.wild = any(at < len(path) and path[at][1] for path, at in self._states)
        """Whether the next step of a path matches any field."""

    @classmethod
    def of(cls, paths: Iterable[str]) -> Mask:
        """A mask of these paths. Malformed ones match nothing; they are refused where they are configured."""
        readable: list[tuple[Step, ...]] = []
        for path in paths:
            with suppress(ValueError):
                readable.append(parse_path(path))
        return cls((path, 0) for path in readable)

    def at(self, name: str) -> Mask | None:
        """The mask for a field, None if no path leads through it."""
        if name not in self._steps:
            mask = Mask(
                (path, at if path[at] == _DEEP else at + 1)
                for path, at in self._states
                if at < len(path) and (path[at] == (name, False) or path[at][1])
            )
            self._steps[name] = mask if mask._states else None
        return self._steps[name]


def _closed(states: Iterable[tuple[tuple[Step, ...], int]]) -> Iterable[tuple[tuple[Step, ...], int]]:
    """Add the states that are reached if ``**`` matches no field."""
    for path, start in states:
        yield path, start
        at = start
        while at < len(path) and path[at] == _DEEP:
            at += 1
            yield path, at


NOTHING: Final = Mask(())
"""Matches nothing: only what a schema requires stays of the value."""
