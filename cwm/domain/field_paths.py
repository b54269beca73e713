"""Paths of the fields that a projection keeps: ``id``, ``user.login``, ``items[*].name``, ``*.size``, ``**.id``.

A path passes through lists by itself, so ``[*]`` is optional. ``*`` matches any one field, ``**`` any number of
fields. A name that contains a dot or a bracket is written in double quotes.
"""

from __future__ import annotations

import re
from typing import Final

_STEP: Final = re.compile(r'\[\*\]|(?P<dot>\.?)(?:"(?P<quoted>[^"]+)"|(?P<name>[^.\[\]"*]+)|(?P<wild>\*\*?))')


Step = tuple[str, bool]
"""A name and whether it is a wildcard."""


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises ValueError naming the position that cannot be read."""
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
