"""Upkeep: what a look at the whole found, and what was done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """``postponed`` steps are tried again: something they need is away, or is being changed right now."""

    PLANNED = "planned"
    DONE = "done"
    POSTPONED = "postponed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """``subject`` is the window, session or cache_salt that it is about; ``detail`` says what and why."""

    action: str
    tenant: str
    subject: str
    outcome: Outcome
    detail: str = ""
