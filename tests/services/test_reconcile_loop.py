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
    fails: bool = False
    beaten: asyncio.Event = field(default_factory=asyncio.Event)

    async def beat(self) -> None:
        self.beats += 1
        self.beaten.set()
        if self.fails:
            raise KeyError("an answer that nobody expected")

    async def lead(self) -> bool:
        return False


@dataclass(frozen=True)
class Clocked:
    clock: SystemClock


def looking_after(follower: Follower) -> Reconcile:
    nothing = cast("Any", None)
    journal = cast("Any", Clocked(SystemClock()))
    return Reconcile(
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


async def beaten_again(reconcile: Reconcile, follower: Follower) -> None:
    """Something was lost, and the next beat is there."""
    follower.beaten.clear()
    reconcile.lost()
    await asyncio.wait_for(follower.beaten.wait(), 10)


async def test_a_gateway_that_does_not_lead_sleeps_also_when_something_was_lost() -> None:
    follower = Follower()
    reconcile = looking_after(follower)
    running = asyncio.create_task(reconcile.run(60.0))
    await follower.beaten.wait()
    await beaten_again(reconcile, follower)
    for _ in range(1000):
        await asyncio.sleep(0)
    running.cancel()
    assert follower.beats == 2


async def test_a_gateway_goes_on_saying_that_it_lives_whatever_fails() -> None:
    follower = Follower(fails=True)
    reconcile = looking_after(follower)
    running = asyncio.create_task(reconcile.run(60.0))
    await follower.beaten.wait()
    await beaten_again(reconcile, follower)
    running.cancel()
    assert follower.beats == 2
