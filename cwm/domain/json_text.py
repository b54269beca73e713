"""Serialises large JSON values in pieces, and lays out JSON without a change of its numbers.

A single ``json.dumps`` call for a large value would block every other thread until it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_CHARS_AT_ONCE: Final = 100_000
# Roughly the length of a number, or the overhead of a name or bracket beyond its letters.
_CHARS_EACH: Final = 10
_NESTED: Final = (dict, list, tuple)
_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},:]|[^\s\[\]{},:"]+')
_OPENING: Final = ("[", "{")
_CLOSING: Final = ("]", "}")

Spell = Callable[[Any], str]


def json_text(value: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """The same text as ``json.dumps`` with ``ensure_ascii=False``, character by character. Raises the same errors."""
    encoder = json.JSONEncoder(ensure_ascii=False, separators=separators)
    return "".join(_pieces(value, encoder.encode, separators[0]))


def compact_json(value: Any) -> str:
    """Compact JSON that can be encoded as UTF-8: half of a surrogate pair makes it ASCII."""
    text = json_text(value, (",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def json_pieces(value: Any) -> Iterator[str]:
    """Compact JSON in ASCII, piece by piece. Raises the errors of ``json.dumps``."""
    return _pieces(value, json.JSONEncoder(separators=(",", ":")).encode, ",")


def laid_out(document: str) -> str:
    """Valid JSON on lines as ``json.dumps`` with ``indent=2`` writes it, but with numbers and doubled names as they were written."""
    pieces: list[str] = []
    depth, before = 0, ""
    for piece in _PIECE.findall(document):
        is_closing = piece in _CLOSING
        depth -= is_closing
        if before and (before not in _OPENING if is_closing else before in (*_OPENING, ",")):
            pieces.append("\n" + "  " * depth)
        pieces.append(_as_shown(piece))
        depth += piece in _OPENING
        before = piece
    return "".join(pieces)


def is_long(value: Any) -> bool:
    """Whether the value is too long to serialise in one call. Stops reading as soon as that is certain."""
    return _room_after(value) < 0


def _as_shown(piece: str) -> str:
    if piece[0] == '"':
        return json.dumps(json.loads(piece), ensure_ascii=False)
    return ": " if piece == ":" else piece


def _room_after(value: Any) -> int:
    room = _CHARS_AT_ONCE
    unread: list[Any] = [value]
    while unread and room >= 0:
        each = unread.pop()
        if isinstance(each, str):
            room -= len(each)
        elif isinstance(each, _NESTED):
            room -= _CHARS_EACH * len(each)
            if room >= 0:
                unread += each
                if isinstance(each, dict):
                    unread += each.values()
    return room


def _pieces(value: Any, spell: Spell, comma: str) -> Iterator[str]:
    if not isinstance(value, _NESTED) or not is_long(value):
        yield spell(value)
        return
    is_object = isinstance(value, dict)
    before, together, room = "{" if is_object else "[", list[Any](), _CHARS_AT_ONCE
    for member in value.items() if isinstance(value, dict) else value:
        room_after = _room_after(member)
        if together and (room_after < 0 or room < 0):
            yield before + _inner(together, spell, is_object=is_object)
            before, together, room = comma, [], _CHARS_AT_ONCE
        if room_after < 0:
            # The member's name with its colon, as before any value.
            yield before + (spell({member[0]: 0})[1:-2] if is_object else "")
            yield from _pieces(member[1] if is_object else member, spell, comma)
            before = comma
        else:
            together.append(member)
            room -= _CHARS_AT_ONCE - room_after + _CHARS_EACH
    if together:
        yield before + _inner(together, spell, is_object=is_object)
    yield "}" if is_object else "]"


def _inner(together: list[Any], spell: Spell, *, is_object: bool) -> str:
    return spell(dict(together) if is_object else together)[1:-1]
