"""Formats counts, times and lists; sizes are written by ``cwm/domain/notation.py``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


def count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def moment(timestamp: str | None) -> str:
    """An ISO timestamp in local time, to the second."""
    if not timestamp:
        return ""
    return datetime.fromisoformat(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def comma_list(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
