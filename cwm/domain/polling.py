"""Polling intervals. Each poll takes time from the engine or store that does the work, so polls get rarer."""

from __future__ import annotations

from typing import Final

_SHARE: Final = 1 / 16


def pause_seconds(waited_seconds: float, least_seconds: float) -> float:
    """Seconds until the next poll: a sixteenth of the time waited so far, which also bounds how late the end is noticed."""
    return max(least_seconds, waited_seconds * _SHARE)
