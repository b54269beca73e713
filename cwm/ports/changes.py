"""Notifies every replica of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cwm.domain.changes import Change


class Changes(Protocol):
    """Publish and subscribe, without storage: a subscriber that was away must check for itself."""

    async def publish(self, change: Change) -> None:
        """Notify every listener on every replica, this one included. Never raises when the store is unavailable."""

    def tell(self, change: Change) -> None:
        """Notify only this replica's listeners, of changes that every replica detects by itself."""

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``listener`` for every change from now on; the returned callable unsubscribes.

        A listener must not raise or block.
        """
