"""Callers who leave half-way, as clients that disconnect do: nothing stays noted as being done that nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.canary import Origin
from cwm.domain.look import Distance
from cwm.domain.verdict import ControlEvidence, Evidence, Verification
from cwm.domain.window import Durability, Window
from cwm.ports.engine import Engine
from cwm.services.kv.prefix import Prefix
from tests.fakes.kv_tier import Copy
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


async def proved_wrong(before: Gateway) -> tuple[Window, Prefix, Evidence]:
    """A window of whose KV the second chunk is wrong, in the tiers and in the engine's own cache; what a control found of it."""
    window = await before.window()
    snapshot = await before.registry.snapshot("acme", window.snapshot_id)
    prefix = Prefix(snapshot.token_ids, window.cache_salt, window.identity)
    before.kv_tier.damage(prefix.key, 1, Copy.FORGED)
    before.engine.restart()
    await before.engine.complete(prefix.request())
    apart = Distance(8, 8, 2.0, 1.5, 97)
    control = ControlEvidence(apart, Distance(8), Distance(8), agreed_tokens=before.kv_tier.chunk_size)
    return window, prefix, Evidence(Verification.MISMATCH, apart, None, Origin.COMPUTED, control)


async def audited(cwm: Gateway) -> list[tuple[str, str]]:
    return [event for event in await cwm.events() if event[0] == "window.quarantine"]


async def all_is_right(cwm: Gateway, window: Window, prefix: Prefix) -> bool:
    """No copy of the window's KV is wrong any more, and the window is stored under the salt that it had."""
    now = await cwm.registry.window("acme", window.name)
    names = cwm.kv_tier.names(prefix.key)
    copies = {copy for name in names for copy in cwm.kv_tier.copies[name].values()}
    return (
        now is not None
        and (now.durability, now.cache_salt) == (Durability.DURABLE, window.cache_salt)
        and copies == {Copy.SOUND}
    )


@pytest.mark.parametrize("call", ["begin_quarantine", "doubt_windows", "store_again", "end_intent"])
async def test_a_quarantine_whose_caller_leaves_is_gone_through_with(
    before: Gateway, database: Database, call: str
) -> None:
    window, prefix, evidence = await proved_wrong(before)
    cwm, late = late_registry(before, database, call)
    await left(late, lambda: cwm.quarantine(ANN, window, prefix, evidence))
    assert await all_is_right(cwm, window, prefix)
    assert await cwm.at_rest()
    assert await audited(cwm) == [("window.quarantine", "mismatch")]


async def test_a_scope_that_is_left_when_the_caller_leaves_is_left_wholly(
    before: Gateway, database: Database
) -> None:
    window, prefix, evidence = await proved_wrong(before)
    before.engine.drops = False
    cwm, late = late_registry(before, database, "retire_scope")
    await left(late, lambda: cwm.quarantine(ANN, window, prefix, evidence))
    again = await cwm.registry.window("acme", "w1")
    assert again is not None
    assert (again.durability, again.salt_scope) == (Durability.DURABLE, "tenant:acme#1")
    assert cwm.kv_tier.stored(window.cache_salt) == {}
    assert await cwm.at_rest()


async def test_a_quarantine_that_nobody_waits_for_any_more_is_waited_for_at_the_end(before: Gateway) -> None:
    """The engine computes the whole context for it, and must not lose that request half-way."""
    window, prefix, evidence = await proved_wrong(before)
    before.engine.gate = asyncio.Event()
    before.engine.asked.clear()
    caller = asyncio.create_task(before.quarantine(ANN, window, prefix, evidence))
    await asyncio.wait_for(before.engine.asked.wait(), 20)
    caller.cancel()
    settled = asyncio.create_task(before.quarantine.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    before.engine.gate.set()
    await asyncio.wait_for(settled, 20)
    await before.settle()
    assert await audited(before) == [("window.quarantine", "mismatch")]
    assert await all_is_right(before, window, prefix)


async def test_a_look_whose_caller_leaves_is_ended_before_the_gateway_ends(
    before: Gateway, database: Database
) -> None:
    """The request must not be lost half-way."""
    await before.window()
    before.engine.restart()
    late = Late(before.engine, "look")
    cwm = gateway(database, before.engine, served=cast("Engine", late))
    await left(late, lambda: cwm.thaw(ANN, "w1", "s2"))
    await cwm.thaw.settle()
    assert await cwm.registry.session("acme", "s2") is None
    assert await cwm.registry.intents_of_every_tenant() == []


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
