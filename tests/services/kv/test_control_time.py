"""Who has an engine's time for controls, and how much of it there is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from cwm.services.kv.control_time import ControlTime
from tests.eventually import eventually


@dataclass(slots=True)
class Clock:
    """Stands still."""

    seconds: float = 100.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds


@dataclass(slots=True)
class Engine:
    """Controls of the engine "one", each of which goes on until it is let go."""

    time: ControlTime
    begun: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _may_end: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def control(self, tenant: str) -> None:
        async with self.time.taken("one", tenant) as is_ours:
            if not is_ours:
                self.refused.append(tenant)
                return
            self.begun.append(tenant)
            await self._may_end.acquire()

    def has_begun(self, count: int) -> bool:
        return len(self.begun) == count

    def let_go(self) -> None:
        self._may_end.release()


async def test_who_asks_for_many_waits_for_those_who_ask_for_few() -> None:
    engine = Engine(ControlTime(Clock()))
    controls = [asyncio.create_task(engine.control(tenant)) for tenant in ("many", "many", "many", "few")]
    for count in range(1, 5):
        await eventually(partial(engine.has_begun, count))
        engine.let_go()
    await asyncio.gather(*controls)
    assert engine.begun == ["many", "few", "many", "many"]


async def test_when_an_engines_time_is_used_up_the_next_control_waits_until_its_share_has_passed() -> None:
    clock = Clock()
    engine = Engine(ControlTime(clock, share=0.5, at_once=1.0))
    controls = [asyncio.create_task(engine.control("acme")) for _ in range(2)]
    await eventually(lambda: len(engine.begun) == 1)
    clock.seconds += 1.02
    engine.let_go()
    await controls[0]
    clock.seconds += 0.03
    await asyncio.wait(controls[1:], timeout=0.2)
    assert len(engine.begun) == 1, "0.005 s more than may be used at once are still owed"
    clock.seconds += 0.02
    await eventually(lambda: len(engine.begun) == 2)
    engine.let_go()
    await controls[1]


async def test_who_has_waited_for_long_is_told_that_there_is_no_time() -> None:
    engine = Engine(ControlTime(Clock(), patience=0.05))
    first, second = (asyncio.create_task(engine.control("acme")) for _ in range(2))
    await second
    assert (engine.begun, engine.refused) == (["acme"], ["acme"])
    third = asyncio.create_task(engine.control("rivals"))
    engine.let_go()
    await first
    await eventually(lambda: engine.begun == ["acme", "rivals"])
    engine.let_go()
    await third


async def test_a_caller_that_goes_away_while_it_waits_holds_up_nobody() -> None:
    engine = Engine(ControlTime(Clock()))
    first, second, third = (asyncio.create_task(engine.control(tenant)) for tenant in ("a", "b", "c"))
    await eventually(lambda: engine.begun == ["a"])
    second.cancel()
    engine.let_go()
    await first
    await eventually(lambda: engine.begun == ["a", "c"])
    engine.let_go()
    await third
