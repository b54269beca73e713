"""Replicas: the gateways that share a registry, which of them are alive, and which one leads."""

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
    """``me`` names this process. ``has_ended`` answers for processes of this machine and returns None for others."""

    leases: Leases
    me: str
    has_ended: Callable[[str], bool | None]
    _let_go: dict[str, Intent] = field(default_factory=dict)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def beat(self) -> None:
        """Renew this process's lease; call at least every ``BEAT_SECONDS``."""
        await self.leases.take(f"replica:{self.me}", self.me, _STALE)

    async def beat_on(self) -> None:
        """Renew the lease until cancelled, in a process that is shutting down."""
        while True:
            with suppress(CwmError):
                await self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def let_go(self, intent: Intent) -> None:
        """Stop working on the intent in this process, whether or not that can be recorded now."""
        self._let_go[intent.id] = intent

    def take_up(self, intent: Intent) -> None:
        """Work on the intent again in this process."""
        self._let_go.pop(intent.id, None)

    async def abandoned(self, intent: Intent) -> bool:
        """Whether no process works on the intent any more."""
        given_up = intent.holder == self.me and intent.id in self._let_go
        return given_up or await self.gone(intent.holder)

    async def hand_over(self, write: Callable[[Intent], Awaitable[None]]) -> None:
        """Record with ``write`` each intent that was let go, so that the leader can go on with it.

        Does nothing while this process reconciles: it may be taking some of them up again.
        """
        if self._looking.locked():
            return
        async with self._looking:
            for intent in list(self._let_go.values()):
                await write(intent)
                self.take_up(intent)

    async def gone(self, holder: str) -> bool:
        """Whether the process ``holder`` has died."""
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
        """Become or stay the leader. False while another leader is alive."""
        leads = await self._take(_LEADER)
        if leads:
            await self.leases.forget(_FORGOTTEN)
        return leads

    async def tell_loss(self, at: datetime) -> None:
        """Report to the leader that chunks had vanished by ``at``. A later report stays."""
        await self.leases.note(_LOSS, self.me, at)

    async def lost_at(self) -> datetime | None:
        """When a gateway last reported vanished chunks, within the last hour."""
        seen = await self.leases.seen(_LOSS)
        return None if seen is None else seen.seen_at

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Reconcile alone: True if no other replica does so while the block lasts.

        Within this process callers wait for each other, because the process already holds the lease.
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
        """Take a lease, also from a process that is known to have died."""
        if await self.leases.take(name, self.me, _STALE):
            return True
        seen = await self.leases.seen(name)
        if seen is None or not self.has_ended(seen.holder):
            return False
        await self.leases.drop(name, seen.holder)
        return await self.leases.take(name, self.me, _STALE)

    async def leave(self) -> None:
        """Drop this process's leases, so that other replicas need not wait for them to expire."""
        await self.leases.drop(_LEADER, self.me)
        await self.leases.drop(f"replica:{self.me}", self.me)
