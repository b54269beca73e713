"""Who wants to hear of which resources in one session with an upstream."""

from __future__ import annotations

from contextlib import suppress

from cwm.ports.upstream import UpstreamError, UpstreamSession


class Watches:
    """The upstream is asked once for each resource, however many listen, and again in a new session."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[str, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def uris(self) -> list[str]:
        return list(self._listeners)

    def add(self, uri: str, listener: str) -> bool:
        """True for the first who listens to it."""
        listeners = self._listeners.setdefault(uri, set())
        first = not listeners
        listeners.add(listener)
        return first

    def remove(self, uri: str, listener: str) -> bool:
        """True when nobody listens to it any more."""
        listeners = self._listeners.get(uri, set())
        if listener not in listeners:
            return False
        listeners.discard(listener)
        if listeners:
            return False
        del self._listeners[uri]
        return True

    def forget(self, listener: str) -> list[str]:
        """What nobody listens to any more once this one is gone."""
        return [uri for uri in self.uris() if self.remove(uri, listener)]

    async def renew(self, session: UpstreamSession) -> None:
        """Ask a new session for what the old one was asked; what it refuses now is not heard of."""
        for uri in self.uris():
            with suppress(UpstreamError):
                await session.watch(uri)
