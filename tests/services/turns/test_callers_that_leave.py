"""Callers who leave half-way, as clients that disconnect do: nothing stays noted as being done that nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.canary import Canary, Evidence, Verification
from cwm.domain.window import Durability, Window
from cwm.services.kv.prefix import Prefix
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow


@dataclass
class Late:
    """``real``, but for one call: when it has done that it takes its time to say so."""

    real: Any
    call: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        return self._late(method) if name == self.call else method

    def _late(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def late(*args: Any, **kwargs: Any) -> Any:
            answer = await method(*args, **kwargs)
            self.done.set()
            await self.go_on.wait()
            return answer

        return late


async def left(late: Late, work: Callable[[], Awaitable[Any]]) -> None:
    """Begin the work, leave when what is late is done, and see that everything ends that still runs."""
    before = asyncio.all_tasks()

    async def begin() -> None:
        await work()

    async with asyncio.timeout(20):
        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            await late.done.wait()
            # Whatever awaits in the scope from here on is cancelled, again and again.
            group.cancel_scope.cancel()
        late.go_on.set()
        while running := asyncio.all_tasks() - before:
            await asyncio.gather(*running, return_exceptions=True)


@pytest.fixture
async def before(database: Database) -> AsyncIterator[Gateway]:
    """What a test begins with, on the same database and in front of the same engine."""
    opened = gateway(database)
    yield opened
    await opened.settle()


def late_registry(before: Gateway, database: Database, call: str) -> tuple[Gateway, Late]:
    late = Late(SqlRegistry(database, "me"), call)
    return gateway(database, before.engine, registry=late), late


@pytest.mark.parametrize("call", ["begin_thaw", "snapshot"])
async def test_a_thaw_whose_caller_leaves_is_noted_no_more(
    before: Gateway, database: Database, call: str
) -> None:
    await before.window()
    cwm, late = late_registry(before, database, call)
    await left(late, lambda: cwm.thaw(ANN, "w1", "thawed"))
    assert await cwm.registry.intents_of_every_tenant() == []
    assert not (await cwm.registry.dependents("acme", "w1")).sessions


async def proved_wrong(before: Gateway) -> tuple[Window, Prefix, Canary, Evidence]:
    """A window whose canary does not continue as it did."""
    window = await before.window()
    snapshot = await before.registry.snapshot("acme", window.snapshot_id)
    canary = await before.registry.canary("acme", window.snapshot_id, window.cache_salt)
    assert canary is not None
    prefix = Prefix(snapshot.token_ids, window.cache_salt, window.identity)
    return window, prefix, canary, Evidence(Verification.MISMATCH)


async def audited(cwm: Gateway) -> list[tuple[str, str]]:
    return [event for event in await cwm.events() if event[0] == "window.quarantine"]


@pytest.mark.parametrize("call", ["begin_quarantine", "retire_scope", "store_again", "end_intent"])
async def test_a_quarantine_whose_caller_leaves_is_gone_through_with(
    before: Gateway, database: Database, call: str
) -> None:
    wrong = await proved_wrong(before)
    cwm, late = late_registry(before, database, call)
    await left(late, lambda: cwm.quarantine(ANN, *wrong))
    window, prefix, *_ = wrong
    assert cwm.kv_tier.stored(prefix.cache_salt) == {}
    again = await cwm.registry.window("acme", "w1")
    assert again is not None
    assert (again.durability, again.cache_salt != window.cache_salt) == (Durability.DURABLE, True)
    assert await cwm.at_rest()
    assert await audited(cwm) == [("window.quarantine", "exact")]


async def test_a_quarantine_that_nobody_waits_for_any_more_is_waited_for_at_the_end(before: Gateway) -> None:
    """The engine computes the whole context for it, and must not lose that request half-way."""
    wrong = await proved_wrong(before)
    before.engine.gate = asyncio.Event()
    before.engine.asked.clear()
    caller = asyncio.create_task(before.quarantine(ANN, *wrong))
    await asyncio.wait_for(before.engine.asked.wait(), 20)
    caller.cancel()
    settled = asyncio.create_task(before.quarantine.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    before.engine.gate.set()
    await asyncio.wait_for(settled, 20)
    assert await audited(before) == [("window.quarantine", "exact")]


async def test_a_clone_whose_caller_leaves_is_noted_no_more(before: Gateway, database: Database) -> None:
    window = await before.window()
    cwm, late = late_registry(before, database, "add_clone")
    await left(late, lambda: cwm.clone(ANN, "w1", "copy"))
    assert await cwm.registry.window("acme", "copy") is not None
    assert set((await cwm.kv_tier.pins(window.cache_salt)).values()) == {2}
    assert await cwm.at_rest()


@pytest.mark.parametrize("call", ["remove_session", "unreferenced"])
async def test_a_session_whose_deletion_nobody_waits_for_owes_nothing(
    before: Gateway, database: Database, call: str
) -> None:
    await before.session()
    key = await before.session_key()
    cwm, late = late_registry(before, database, call)
    await left(late, lambda: cwm.end_session(ANN, "s1"))
    assert await cwm.registry.intents_of_every_tenant() == []
    assert cwm.kv_tier.stored(key.cache_salt) == {}


async def test_what_is_still_owed_when_its_payer_leaves_is_left_to_whoever_looks_next(
    before: Gateway, database: Database
) -> None:
    window = await before.window()
    owed = await before.registry.remove_window(window, before.clock.now(), await before.debt_of(window))
    assert owed is not None
    late = Late(before.kv_tier, "unpin")
    cwm = gateway(database, before.engine, kv_tier=late)
    await left(late, lambda: cwm.release(owed))
    assert [(intent.id, intent.holder) for intent in await cwm.registry.intents_of_every_tenant()] == [
        (owed.id, "")
    ]
    assert await cwm.replicas.abandoned(owed)
