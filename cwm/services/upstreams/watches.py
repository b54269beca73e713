"""Who wants to hear of which resources in one session with an upstream."""

from __future__ import annotations

import asyncio

from cwm.domain.backoff import Backoff
from cwm.ports.upstream import UpstreamError, UpstreamRefusedError, UpstreamSession


class Watches:
    """The upstream is asked once for each resource, however many listen, and again in a new session."""

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
        self._missed.discard(uri)
        return True

    def forget(self, listener: str) -> list[str]:
        """What nobody listens to any more once this one is gone."""
        return [uri for uri in self.uris() if self.remove(uri, listener)]

    def missed(self, uri: str) -> None:
        """The upstream was asked for it and did not answer; whoever listens to it waits for :meth:`ask_again`."""
        if uri in self._listeners:
            self._missed.add(uri)
            self._is_missed.set()

    async def renew(self, session: UpstreamSession) -> None:
        """Ask a new session for what the old one was asked."""
        self._missed.clear()
        for uri in self.uris():
            await self.ask(session, uri)

    async def ask_again(self, session: UpstreamSession) -> None:
        """Ask this session for what it did not answer, until it does. Does not return."""
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
        """Unless nobody listens any more; what it refuses is not heard of."""
        if uri not in self._listeners:
            return
        try:
            await session.watch(uri)
        except UpstreamRefusedError:
            return
        except UpstreamError:
            self.missed(uri)
