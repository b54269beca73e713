"""How often to ask whether something is done: asking takes time from whoever is at work on it."""

from __future__ import annotations

from typing import Final

_SHARE: Final = 1 / 16


def pause_seconds(waited_seconds: float, least_seconds: float) -> float:
    """Until the next question: a sixteenth of what was waited so far, which is all that the end is noticed late by."""
    return max(least_seconds, waited_seconds * _SHARE)
