"""What can be shown to every reader: the rule for JSON that comes in, and the form of what was recorded without it.

A field that the engine ignores is recorded like any other, and read again by programs that take no half of a surrogate
pair, no number beyond those of JSON, and no more than some 200 levels.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError

DEEPEST: Final = 160
"""Most levels of lists and objects in a request: strict readers stop at 200, and an answer adds some around what it shows."""
DEEPEST_ARGUMENT: Final = 64
"""The same of an argument of a tool."""
_DEEPEST_SHOWN: Final = DEEPEST + 10
# Python writes no integer of more than 4300 digits.
_LONGEST_NUMBER_BITS: Final = 14_000
# Without one of these no text in JSON has half of a surrogate pair; NUL is in every encoding but UTF-8.
_ESCAPED_HALF: Final = re.compile(rb"\\u[dD]")
_PLAIN_HALVES: Final = (b"\xed", b"\x00")
_NESTED: Final = (dict, list)
_UNSHOWN: Final = "(nested too deeply to be shown)"


def flaw(value: Any, deepest: int = DEEPEST) -> str | None:
    """Why a JSON value cannot be shown, as the end of a sentence; None if it can. It may have so many levels."""
    level, depth = [value], 0
    # Python's recursive JSON code cannot handle deeply nested values.
    while level:
        if any(map(_is_foreign, level)):
            return "contains a number that JSON does not have"
        if any(map(_is_half, level)):
            return "contains half of a surrogate pair, which is not valid text"
        depth += any(isinstance(each, _NESTED) for each in level)
        if depth > deepest:
            return f"is nested deeper than {deepest}"
        level = [inner for each in level for inner in _inside(each)]
    return None


def loaded(body: bytes, refuse_constant: Callable[[str], Any]) -> tuple[Any, bool]:
    """The value of a request's JSON, which calls ``refuse_constant`` for NaN and the like; and whether halves of surrogate pairs were replaced in it.

    CWM-1003 for an object that could be recorded and never be shown; ValueError and RecursionError for what is no JSON.
    """
    numbers = _Numbers()
    value = json.loads(body, parse_constant=refuse_constant, parse_float=numbers.read)
    has_halves = _may_have_halves(body) and _has_halves(value)
    if has_halves:
        value = _with_replacements(value)
    if isinstance(value, dict) and (numbers.are_foreign or _may_be_too_deep(value, body)):
        require_showable(value)
    return value, has_halves


def require_showable(fields: Mapping[str, Any]) -> None:
    """CWM-1003 for fields of a request that could be recorded and never be shown."""
    for name, value in fields.items():
        if (fault := flaw({name: value})) is not None:
            field = shown(name[:128])
            raise InvalidParameterError(f"'{field}' {fault}.", field=field)


def shown(value: Any, levels: int = _DEEPEST_SHOWN) -> Any:
    """``value`` with escapes in place of what cannot be shown; what is deeper than so many levels as the text of its JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode() if _is_half(value) else value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, (*_NESTED, tuple)):
        return value
    if not levels:
        return _spelled(value)
    if isinstance(value, dict):
        return {shown(name): shown(inner, levels - 1) for name, inner in value.items()}
    return [shown(inner, levels - 1) for inner in value]


def recorded(text: bytes) -> Any:
    """The value of JSON that was recorded, however deep it is: what no reader could follow is the text of its JSON.

    ValueError for what is no JSON.
    """
    try:
        value = json.loads(text, parse_constant=str)
    except RecursionError:
        return json.loads(_cut(text.decode()), parse_constant=str)
    if _may_be_deep(text) and _is_deeper(value, _DEEPEST_SHOWN):
        return json.loads(_cut(text.decode()), parse_constant=str)
    return value


class _Numbers:
    """Reads numbers with a fraction or an exponent, and notes one that is too large to be one."""

    def __init__(self) -> None:
        self.are_foreign = False

    def read(self, text: str) -> float:
        number = float(text)
        self.are_foreign = self.are_foreign or math.isinf(number)
        return number


def _may_have_halves(body: bytes) -> bool:
    return any(sign in body for sign in _PLAIN_HALVES) or (
        b"\\" in body and _ESCAPED_HALF.search(body) is not None
    )


def _has_halves(value: Any) -> bool:
    level = [value]
    while level:
        if any(map(_is_half, level)):
            return True
        level = [inner for each in level for inner in _inside(each)]
    return False


def _with_replacements(value: Any) -> Any:
    """The same with U+FFFD for each half of a surrogate pair. RecursionError for what is nested too deeply."""
    if isinstance(value, str):
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole if _is_half(value) else value
    if isinstance(value, dict):
        return {_with_replacements(name): _with_replacements(inner) for name, inner in value.items()}
    return [_with_replacements(inner) for inner in value] if isinstance(value, list) else value


def _may_be_too_deep(fields: Mapping[str, Any], body: bytes) -> bool:
    return _may_be_deep(body) and _is_deeper(fields, DEEPEST)


def _may_be_deep(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > DEEPEST


def _is_deeper(value: Any, deepest: int) -> bool:
    level = [value]
    for _ in range(deepest):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, _NESTED)
        ]
        if not level:
            return False
    return True


def _cut(text: str) -> str:
    """JSON with each value below the deepest level as a text."""
    pieces: list[str] = []
    start = depth = 0
    is_quoted = is_escaped = False
    for at, character in enumerate(text):
        if is_quoted:
            is_quoted = is_escaped or character != '"'
            is_escaped = not is_escaped and character == "\\"
        elif character == '"':
            is_quoted = True
        elif character in "[{":
            depth += 1
            if depth == _DEEPEST_SHOWN + 1:
                pieces.append(text[start:at])
                start = at
        elif character in "]}":
            if depth == _DEEPEST_SHOWN + 1:
                pieces.append(json.dumps(text[start : at + 1]))
                start = at + 1
            depth -= 1
    return "".join([*pieces, text[start:]])


def _spelled(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), default=str)
    except RecursionError:
        return _UNSHOWN


def _is_foreign(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER_BITS


def _is_half(value: Any) -> bool:
    if not isinstance(value, str) or value.isascii():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return chain(value, value.values())
    return value if isinstance(value, list) else ()
