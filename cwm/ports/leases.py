"""Who is there: names that a process holds for as long as it says so."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Leases(Protocol):
    async def take(self, name: str, holder: str, at: datetime, stale_before: datetime) -> bool:
        """Hold ``name``, or go on holding it. False while somebody else was seen since ``stale_before``."""

    async def drop(self, name: str, holder: str) -> None:
        """Let go at once."""

    async def forget(self, stale_before: datetime) -> None:
        """Drop every lease that was not renewed since."""

    async def seen(self, name: str) -> tuple[str, datetime] | None:
        """Who holds it, and when they last said so."""
