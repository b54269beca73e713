"""Storage of measured engine speeds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from cwm.domain.speeds import Observation, Speeds


class SpeedRecords(Protocol):
    """Observations by engine key; they belong to no tenant.

    CWM-4001 (writing) or CWM-4002 (reading), as in the registry.
    """

    async def speeds(self, engine: str) -> Speeds:
        """The observations of all gateways so far; none for a new engine."""

    async def add_speeds(self, engine: str, observations: Sequence[Observation], at: datetime) -> Speeds:
        """Merge with what others have added meanwhile; returns the result."""
