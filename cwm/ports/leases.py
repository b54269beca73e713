"""Who is there: names that a process holds for as long as it says so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """``age`` goes by the one clock that all holders are measured by, which need not be anybody's own."""

    holder: str
    seen_at: datetime
    age: timedelta


class Leases(Protocol):
    async def take(self, name: str, holder: str, stale: timedelta) -> bool:
        """Hold ``name``, or go on holding it. False while somebody else was seen no longer than ``stale`` ago."""

    async def drop(self, name: str, holder: str) -> None:
        """Let go at once."""

    async def forget(self, stale: timedelta) -> None:
        """Drop every lease that was not renewed for so long."""

    async def seen(self, name: str) -> Lease | None:
        """Who holds it, and when they last said so."""

    async def note(self, name: str, holder: str, at: datetime) -> None:
        """Keep under ``name`` that something happened ``at`` then, unless somebody keeps a later moment there."""
