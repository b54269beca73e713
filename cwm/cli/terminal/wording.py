"""Formats numbers, times and lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

_STEP = 1024


def size(count: float) -> str:
    """``count`` bytes in the largest unit that leaves at least 1: '1.5 MiB'."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    index = 0
    while count >= _STEP and index < len(units) - 1:
        count, index = count / _STEP, index + 1
    return f"{count:.0f} {units[index]}" if index == 0 else f"{count:.1f} {units[index]}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def moment(timestamp: str | None) -> str:
    """An ISO timestamp in local time, to the second."""
    if not timestamp:
        return ""
    return datetime.fromisoformat(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def comma_list(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
