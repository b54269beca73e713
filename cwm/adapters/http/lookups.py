"""Looks up the addresses of names that others choose, whose name servers may never answer.

The resolver of the operating system cannot be interrupted, and the event loop has four threads for it, in which the gateway also finds its
engines and stores. Here each lookup has a thread of its own, and each owner a bound on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Mapping
from threading import Thread
from typing import Any, Final, TypeAlias

Addresses: TypeAlias = list[tuple[Any, ...]]
"""As ``socket.getaddrinfo`` gives them."""

_MOST: Final = 32


class Lookups:
    """At most ``most`` lookups at once. One that nobody waits for any more counts until the resolver gives it up."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._running: Counter[str] = Counter()
        self._all = 0
        self._waiting: dict[asyncio.Future[None], Mapping[str, int]] = {}

    async def look_up(self, host: str, port: int | None = None, *, bounds: Mapping[str, int]) -> Addresses:
        """The addresses of ``host``. Raises OSError or UnicodeError if there is none.

        ``bounds``: how many lookups each of its owners may have at once. It waits for room, and for the answer, as long as its caller does.
        """
        with contextlib.suppress(socket.gaierror):
            # No server is asked for an address.
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        await self._room(bounds)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Addresses] = loop.create_future()

        def ask() -> None:
            try:
                found: Addresses | Exception = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:  # noqa: BLE001 - it is raised to the caller
                found = error
            # The loop is closed once the gateway has stopped.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._done, bounds, answer, found)

        try:
            # A daemon: a gateway that stops does not wait for silent name servers.
            Thread(target=ask, name="cwm-lookup", daemon=True).start()
        except BaseException:
            self._release(bounds)
            raise
        return await answer

    def _done(
        self, bounds: Mapping[str, int], answer: asyncio.Future[Addresses], found: Addresses | Exception
    ) -> None:
        self._release(bounds)
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    async def _room(self, bounds: Mapping[str, int]) -> None:
        if self._has_room(bounds):
            self._hold(bounds)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = bounds
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release(bounds)
            raise
        finally:
            self._waiting.pop(turn, None)

    def _has_room(self, bounds: Mapping[str, int]) -> bool:
        return self._all < self._most and all(self._running[owner] < most for owner, most in bounds.items())

    def _hold(self, bounds: Mapping[str, int]) -> None:
        self._all += 1
        self._running.update(bounds.keys())

    def _release(self, bounds: Mapping[str, int]) -> None:
        self._all -= 1
        for owner in bounds:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]
        for turn, wanted in list(self._waiting.items()):
            if self._all >= self._most:
                return
            if not turn.done() and self._has_room(wanted):
                self._hold(wanted)
                turn.set_result(None)
