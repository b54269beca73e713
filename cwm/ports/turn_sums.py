"""Storage of what turns cost, by tenant and hour. CWM-4001 (writing) or CWM-4002 (reading)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from cwm.domain.turn_sums import TurnSum


class TurnSumRecords(Protocol):
    async def add_turn_sums_of_every_tenant(
        self, sums: Mapping[tuple[str, datetime], TurnSum], before: datetime
    ) -> None:
        """Add to the sums by tenant and hour, all or none, and remove those of hours ``before``."""

    async def turn_sums(self, tenant: str, since: datetime) -> Mapping[datetime, TurnSum]:
        """By hour, from ``since`` on; without hours in which nothing was asked."""
