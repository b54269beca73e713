"""Replicas: which gateways share a registry, which of them live, and which one leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.errors import CwmError
from cwm.domain.intent import Intent
from cwm.ports.leases import Leases

BEAT_SECONDS: Final = 5.0
_STALE: Final = timedelta(seconds=30)
_FORGOTTEN: Final = timedelta(hours=1)
_LEADER: Final = "leader"
_LOOK: Final = "look"
_LOSS: Final = "loss"


@dataclass(frozen=True, slots=True)
class Replicas:
    """``me`` names this process; ``has_ended`` knows the processes of this machine, None for others."""

    leases: Leases
    me: str
    has_ended: Callable[[str], bool | None]
    _let_go: dict[str, Intent] = field(default_factory=dict)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def beat(self) -> None:
        """Say that this process lives; called at least every ``BEAT_SECONDS``."""
        await self.leases.take(f"replica:{self.me}", self.me, _STALE)

    async def beat_on(self) -> None:
        """Say so until cancelled, for a process that looks after nothing else any more."""
        while True:
            with suppress(CwmError):
                await self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def let_go(self, intent: Intent) -> None:
        """Give up on it for this process, whether or not that can be written down now."""
        self._let_go[intent.id] = intent

    def take_up(self, intent: Intent) -> None:
        """Its own process is at it again."""
        self._let_go.pop(intent.id, None)

    async def abandoned(self, intent: Intent) -> bool:
        """Whether nobody is at it any more."""
        given_up = intent.holder == self.me and intent.id in self._let_go
        return given_up or await self.gone(intent.holder)

    async def hand_over(self, write: Callable[[Intent], Awaitable[None]]) -> None:
        """Have it written of all that was let go that nobody is at it, so that whoever leads goes on.

        Not while this process looks after the whole: it may be taking some of that up again.
        """
        if self._looking.locked():
            return
        async with self._looking:
            for intent in list(self._let_go.values()):
                await write(intent)
                self.take_up(intent)

    async def gone(self, holder: str) -> bool:
        """Whether nobody is left who could end what ``holder`` began."""
        if not holder:
            return True
        if holder == self.me:
            return False
        ended = self.has_ended(holder)
        if ended is not None:
            return ended
        seen = await self.leases.seen(f"replica:{holder}")
        return seen is None or seen.age > _STALE

    async def lead(self) -> bool:
        """Become the leader, or stay it. False while another one lives."""
        leads = await self._take(_LEADER)
        if leads:
            await self.leases.forget(_FORGOTTEN)
        return leads

    async def tell_loss(self, at: datetime) -> None:
        """Leave it to whoever leads that chunks had vanished by ``at``; a later loss that is told already stays."""
        await self.leases.note(_LOSS, self.me, at)

    async def lost_at(self) -> datetime | None:
        """When any gateway last saw that chunks had vanished, for an hour."""
        seen = await self.leases.seen(_LOSS)
        return None if seen is None else seen.seen_at

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Nobody else looks after the whole for as long as the block lasts; False when another replica does already.

        Its own process waits until it has ended: the lease alone would be had twice.
        """
        async with self._looking, self._looked_after() as taken:
            yield taken

    @asynccontextmanager
    async def _looked_after(self) -> AsyncIterator[bool]:
        taken = await self._take(_LOOK)
        renewing = asyncio.create_task(self._renew()) if taken else None
        try:
            yield taken
        finally:
            if renewing is not None:
                renewing.cancel()
                with suppress(CwmError):
                    await self.leases.drop(_LOOK, self.me)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with suppress(CwmError):
                await self.beat()
                await self._take(_LOOK)

    async def _take(self, name: str) -> bool:
        """Also from a process that is known to have ended, however short ago."""
        if await self.leases.take(name, self.me, _STALE):
            return True
        seen = await self.leases.seen(name)
        if seen is None or not self.has_ended(seen.holder):
            return False
        await self.leases.drop(name, seen.holder)
        return await self.leases.take(name, self.me, _STALE)

    async def leave(self) -> None:
        """Stop being there, so that others need not wait."""
        await self.leases.drop(_LEADER, self.me)
        await self.leases.drop(f"replica:{self.me}", self.me)
