"""Values that are made large: by length, by count, by depth, and of awkward characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

# A value that stands nowhere else in a body, in whose place the grown one is written.
_PLACE: Final = "\u2603 here"
_PLACE_JSON: Final = json.dumps(_PLACE).encode()
_CHARACTERS: Final[dict[str, bytes]] = {
    "dashes": b"-",
    "spaces": b" ",
    "line ends": rb"\n",
    "quotes": rb"\"",
    "braces": b"{",
    "control tokens": b"<|",
    "two bytes": "\u00e9".encode(),
    "escaped pairs": rb"\ud83d\ude00",
    "escaped zeros": rb"\u0000",
}
_ELEMENTS: Final[dict[str, bytes]] = {"empty lists": b"[]", "empty objects": b"{}", "numbers": b"0"}


@dataclass(frozen=True, slots=True)
class Growth:
    """``unit`` is written as often as fits, between ``opening`` and ``ending``; ``ending`` as often as ``unit`` if ``nested``."""

    name: str
    unit: bytes
    opening: bytes = b""
    ending: bytes = b""
    nested: bool = False

    def value(self, size: int) -> bytes:
        """About ``size`` bytes of JSON."""
        if self.nested:
            count = max(1, size // (len(self.unit) + len(self.ending)))
            return self.unit * count + b"0" + self.ending * count
        if self.unit.startswith(b"%"):
            count = max(1, size // 12)
            return b"{" + b",".join(b'"k%07d":0' % at for at in range(count)) + b"}"
        grown = self.unit * max(1, size // len(self.unit))
        return self.opening + grown.removesuffix(b",") + self.ending


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON body, one value of which is grown."""

    name: str
    before: bytes
    after: bytes
    growth: Growth

    def grown(self, size: int) -> bytes:
        return self.before + self.growth.value(size - len(self.before) - len(self.after)) + self.after


def bodies(seed: Any) -> Iterator[Body]:
    """Every value of ``seed`` grown in each way that fits its type, and the whole body as a list."""
    for path, value in _nodes(seed, ()):
        marked = json.dumps(_replaced(seed, path), separators=(",", ":")).encode()
        before, _, after = marked.partition(_PLACE_JSON)
        at = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path) or "."
        for growth in _growths(value):
            yield Body(f"{at}: {growth.name}", before, after, growth)
    for name, element in _ELEMENTS.items():
        yield Body(f"all of it: {name}", b"", b"", Growth(name, element + b",", b"[", b"]"))


def _growths(value: Any) -> Iterator[Growth]:
    if isinstance(value, str):
        for name, character in _CHARACTERS.items():
            yield Growth(name, character, b'"', b'"')
    elif isinstance(value, list):
        own = {"its own": json.dumps(value[0], separators=(",", ":")).encode()} if value else {}
        for name, element in {**own, **_ELEMENTS}.items():
            yield Growth(name, element + b",", b"[", b"]")
        yield Growth("lists in lists", b"[", ending=b"]", nested=True)
    elif isinstance(value, dict):
        yield Growth("names", b"%")
        yield Growth("objects in objects", b'{"a":', ending=b"}", nested=True)
    else:
        yield Growth("digits", b"9")


def _nodes(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    yield path, value
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, member in members:
        yield from _nodes(member, (*path, name))


def _replaced(value: Any, path: tuple[str | int, ...]) -> Any:
    if not path:
        return _PLACE
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {name: _replaced(each, rest) if name == step else each for name, each in value.items()}
    return [_replaced(each, rest) if at == step else each for at, each in enumerate(value)]
