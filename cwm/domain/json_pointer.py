"""JSON Pointer (RFC 6901): one value inside another."""

from __future__ import annotations

import re
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_EXCERPT_CHARS: Final = 64


def value_at(document: Any, pointer: str) -> Any:
    """The value that ``pointer`` refers to; the whole ``document`` for an empty pointer.

    CWM-1003 when there is none.
    """
    if not pointer:
        return document
    if not pointer.startswith("/") or _BAD_ESCAPE.search(pointer):
        raise InvalidParameterError(
            "A JSON pointer is empty or starts with '/', and has '~' only in '~0' and '~1'.",
            field="json_pointer",
        )
    value = document
    for step, token in enumerate(pointer[1:].split("/"), 1):
        value = _below(value, token.replace("~1", "/").replace("~0", "~"), step)
    return value


def _below(value: Any, token: str, step: int) -> Any:
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
        return value[int(token)]
    raise InvalidParameterError(
        f"The JSON pointer does not resolve at step {step}: {_why(value, token)}.",
        field="json_pointer",
        step=step,
    )


def _why(value: Any, token: str) -> str:
    excerpt = token if len(token) <= _EXCERPT_CHARS else f"{token[:_EXCERPT_CHARS]}…"
    if isinstance(value, dict):
        return f"the object has no field {excerpt!r}"
    if isinstance(value, list):
        return f"the array has {len(value)} items and no {excerpt!r}"
    return f"{excerpt!r} would be inside a plain value"
