"""Where it is kept how fast each engine was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from cwm.domain.speeds import Observation, Speeds


class SpeedRecords(Protocol):
    """By the name of an engine; no tenant owns them. CWM-4001 (writing) or 4002 (reading) as for the registry."""

    async def speeds(self, engine: str) -> Speeds:
        """What was observed so far, by any gateway; nothing for an engine that is new."""

    async def add_speeds(self, engine: str, observations: Sequence[Observation], at: datetime) -> Speeds:
        """Add to what others added meanwhile; the result."""
