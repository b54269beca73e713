"""Leases: names that a process holds for as long as it renews them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as last renewed.

    ``age`` is measured on one clock for all holders, which may differ from the local one.
    """

    holder: str
    seen_at: datetime
    age: timedelta


class Leases(Protocol):
    async def take(self, name: str, holder: str, stale: timedelta) -> bool:
        """Acquire or renew ``name``. False while another holder renewed it within the last ``stale``."""

    async def drop(self, name: str, holder: str) -> None:
        """Release the lease immediately."""

    async def forget(self, stale: timedelta) -> None:
        """Remove every lease that was not renewed within the last ``stale``."""

    async def seen(self, name: str) -> Lease | None:
        """The current holder, and when it last renewed the lease; None when nobody holds it."""

    async def note(self, name: str, holder: str, at: datetime) -> None:
        """Record under ``name`` that an event happened ``at`` this time, unless a later one is recorded."""
