"""The resource subscriptions in one upstream session, by listener."""

from __future__ import annotations

import asyncio

from cwm.domain.backoff import Backoff
from cwm.ports.upstream import UpstreamError, UpstreamRefusedError, UpstreamSession


class Watches:
    """Subscribes once for each resource, however many listeners it has, and again in a new session."""

    __slots__ = ("_is_missed", "_listeners", "_missed")

    def __init__(self) -> None:
        self._listeners: dict[str, set[str]] = {}
        self._missed: set[str] = set()
        self._is_missed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def uris(self) -> list[str]:
        return list(self._listeners)

    def add(self, uri: str, listener: str) -> bool:
        """Add a listener; True if it is the first of the URI."""
        listeners = self._listeners.setdefault(uri, set())
        first = not listeners
        listeners.add(listener)
        return first

    def remove(self, uri: str, listener: str) -> bool:
        """Remove a listener; True if it was the last of the URI."""
        listeners = self._listeners.get(uri, set())
        if listener not in listeners:
            return False
        listeners.discard(listener)
        if listeners:
            return False
        del self._listeners[uri]
        self._missed.discard(uri)
        return True

    def forget(self, listener: str) -> list[str]:
        """Remove a listener everywhere; returns the URIs that have no listener any more."""
        return [uri for uri in self.uris() if self.remove(uri, listener)]

    def missed(self, uri: str) -> None:
        """The upstream did not answer the subscription; :meth:`ask_again` repeats it."""
        if uri in self._listeners:
            self._missed.add(uri)
            self._is_missed.set()

    async def renew(self, session: UpstreamSession) -> None:
        """Subscribe to everything again in a new session."""
        self._missed.clear()
        for uri in self.uris():
            await self.ask(session, uri)

    async def ask_again(self, session: UpstreamSession) -> None:
        """Repeat the subscriptions that were not answered. Runs until cancelled."""
        backoff = Backoff()
        while True:
            await self._is_missed.wait()
            await asyncio.sleep(backoff.pause_seconds())
            missed, self._missed = self._missed, set()
            self._is_missed.clear()
            for uri in missed:
                await self.ask(session, uri)
            if not self._missed:
                backoff.reset()

    async def ask(self, session: UpstreamSession, uri: str) -> None:
        """Subscribe to a URI that still has listeners. If the upstream refuses, there will be no notifications."""
        if uri not in self._listeners:
            return
        try:
            await session.watch(uri)
        except UpstreamRefusedError:
            return
        except UpstreamError:
            self.missed(uri)
