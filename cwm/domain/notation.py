"""How sizes are written for people, wherever CWM shows them."""

from __future__ import annotations

from typing import Final

_STEP: Final = 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """``count`` bytes in the largest unit that leaves at least 1: '1.5 MiB'."""
    index = 0
    while count >= _STEP and index < len(_UNITS) - 1:
        count, index = count / _STEP, index + 1
    return f"{count:,.0f} B" if index == 0 else f"{count:,.1f} {_UNITS[index]}"
