"""Telling every replica what changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cwm.domain.changes import Change


class Changes(Protocol):
    """Fan-out without memory: who was not listening must look for itself."""

    async def publish(self, change: Change) -> None:
        """Tell every listener of every replica, this one's included. Never raises for a store that is away."""

    def tell(self, change: Change) -> None:
        """Tell this replica's listeners alone: of what every replica finds out for itself."""

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Hear of changes from now on; the returned callable ends that. A listener must not raise or block."""
