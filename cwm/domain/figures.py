"""Figures that engines and other servers report: what cannot be a count is unknown."""

from __future__ import annotations

from typing import Any, Final

_MOST: Final = 2**53
_MOST_TOKENS: Final = 2**31 - 1


def count(value: Any, most: int = _MOST) -> int | None:
    """``value`` if it is a whole number from 0 to ``most``."""
    return value if type(value) is int and 0 <= value <= most else None


def token_count(value: Any) -> int | None:
    """The same of tokens, of which no context has more than a column of the registry can hold."""
    return count(value, _MOST_TOKENS)


def is_odd(value: Any) -> bool:
    """Whether a number of tokens was reported that cannot be one."""
    return value is not None and token_count(value) is None
