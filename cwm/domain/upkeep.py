"""Upkeep steps: the problems that a check of the whole system found, and what was done about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cwm.domain.principal import Principal


class StepOutcome(StrEnum):
    """How a step ended. ``postponed`` steps are retried: something they need is unavailable or changing right now."""

    PLANNED = "planned"
    DONE = "done"
    POSTPONED = "postponed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """``subject`` is the window, session (``of_session``) or cache_salt concerned; ``detail`` says what and why. ``actor``: who had it done."""

    action: str
    tenant: str
    subject: str
    outcome: StepOutcome
    detail: str = ""
    of_session: bool = False
    actor: Principal | None = None
