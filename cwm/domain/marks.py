"""Marks: what of records changed last, as far as that can be asked for cheaply, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Touch:
    """When a session was last used or changed, and its circle (``cwm/domain/visibility.py``)."""

    at: datetime
    circle: str


@dataclass(frozen=True, slots=True)
class WindowMark:
    """``count``: windows of a tenant; ``pending``: those that are being stored; ``newest``: when the newest was made."""

    count: int = 0
    pending: int = 0
    newest: datetime | None = None
