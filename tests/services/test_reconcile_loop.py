"""When a gateway looks after the whole, and when it only says that it lives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from cwm.adapters.local.clock import SystemClock
from cwm.services.reconcile import Reconcile


@dataclass
class Follower:
    """A replica that another one leads."""

    beats: int = 0
    beaten: asyncio.Event = field(default_factory=asyncio.Event)

    async def beat(self) -> None:
        self.beats += 1
        self.beaten.set()

    async def lead(self) -> bool:
        return False


@dataclass(frozen=True)
class Clocked:
    clock: SystemClock


async def test_a_gateway_that_does_not_lead_sleeps_also_when_something_was_lost() -> None:
    follower, nothing = Follower(), cast("Any", None)
    journal = cast("Any", Clocked(SystemClock()))
    reconcile = Reconcile(
        nothing,
        nothing,
        cast("Any", follower),
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        journal,
        8,
    )
    running = asyncio.create_task(reconcile.run(60.0))
    await follower.beaten.wait()
    follower.beaten.clear()
    reconcile.lost()
    await asyncio.wait_for(follower.beaten.wait(), 10)
    for _ in range(1000):
        await asyncio.sleep(0)
    running.cancel()
    assert follower.beats == 2
