"""Changes within one gateway process."""

from __future__ import annotations

from collections.abc import Callable

from cwm.domain.changes import Change

Listener = Callable[[Change], None]


class InProcessChanges:
    def __init__(self) -> None:
        # Each subscription has its own token, so that one listener may subscribe twice.
        self._listeners: dict[object, Listener] = {}

    async def publish(self, change: Change) -> None:
        self.tell(change)

    def tell(self, change: Change) -> None:
        for listener in list(self._listeners.values()):
            listener(change)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener

        def end() -> None:
            self._listeners.pop(token, None)

        return end

    async def read(self) -> None:
        """Does nothing: there are no other processes to read from."""

    async def close(self) -> None:
        """Does nothing: there is no connection to close."""
