"""Storage of measured noise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from cwm.domain.look import Distance
from cwm.domain.noise import Noise


class NoiseRecords(Protocol):
    """Pairs of looks at the same KV by engine key; they belong to no tenant.

    CWM-4001 (writing) or CWM-4002 (reading), as in the registry.
    """

    async def noise(self, engine: str) -> Noise:
        """The pairs of all gateways so far; none for a new engine."""

    async def add_noise(
        self, engine: str, distances: Sequence[Distance], at: datetime, computed_twice: float | None = None
    ) -> Noise:
        """Merge with what others have added meanwhile; returns the result. ``computed_twice``: the largest change between two computations of one context, in nats, if that was measured."""
