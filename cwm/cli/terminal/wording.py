"""Formats counts, times and lists; sizes are written by ``cwm/domain/notation.py``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

# What would move the cursor, change colours, or reverse the text around it.
_UNSEEN: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *(code for code in range(0x20) if chr(code) not in "\t\n"),
        *range(0x7F, 0xA0),
        *range(0x200E, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
}


def visible(text: str) -> str:
    """What others wrote, with an escape in place of each character that a terminal would obey."""
    return text.translate(_UNSEEN)


def count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def moment(timestamp: str | None) -> str:
    """An ISO timestamp in local time, to the second."""
    if not timestamp:
        return ""
    return datetime.fromisoformat(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def comma_list(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
