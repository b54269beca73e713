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
        let_go_here = intent.holder == self.me and intent.id in self._let_go
        return let_go_here or await self.gone(intent.holder)

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
        has_ended = self.has_ended(holder)
        if has_ended is not None:
            return has_ended
        lease = await self.leases.seen(f"replica:{holder}")
        return lease is None or lease.age > _STALE

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
        lease = await self.leases.seen(_LOSS)
        return None if lease is None else lease.seen_at

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Reconcile alone: True if no other replica does so while the block lasts.

        Within this process callers wait for each other, because the process already holds the lease.
        """
        async with self._looking, self._look_alone() as is_alone:
            yield is_alone

    @asynccontextmanager
    async def _look_alone(self) -> AsyncIterator[bool]:
        is_alone = await self._take(_LOOK)
        renewal = asyncio.create_task(self._renew()) if is_alone else None
        try:
            yield is_alone
        finally:
            if renewal is not None:
                renewal.cancel()
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
        lease = await self.leases.seen(name)
        if lease is None or not self.has_ended(lease.holder):
            return False
        await self.leases.drop(name, lease.holder)
        return await self.leases.take(name, self.me, _STALE)

    async def leave(self) -> None:
        """Drop this process's leases, so that other replicas need not wait for them to expire."""
        await self.leases.drop(_LEADER, self.me)
        await self.leases.drop(f"replica:{self.me}", self.me)
