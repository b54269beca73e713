"""Callers who leave half-way, as clients that disconnect do: nothing stays noted as being done that nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.canary import Canary, Evidence, Verification
from cwm.domain.engine import EngineIdentity
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.prefix import TokenIds
from cwm.domain.window import Window
from cwm.ports.kv_tier import PrefixKey
from cwm.services.audit.journal import Journal
from cwm.services.kv.prefix import Prefix
from cwm.services.kv.release import Release
from cwm.services.replicas import Replicas
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.salt_scopes import Scopes
from cwm.services.turns.turns import Turns
from cwm.services.windows.clone import Clone
from cwm.services.windows.quarantine import Quarantine
from cwm.services.windows.thaw import Thaw
from tests.contracts.nouns import IDENTITY, IDS, a_session, freeze, remove
from tests.services.replicas_of import ANN

DEBT = Debt("/models/tiny", 1, 32, len(IDS), pinned=True, hashes=("aa",))
NOTHING = cast("Any", None)


class OneEngine:
    async def identity(self, model: str | None = None) -> EngineIdentity:
        return IDENTITY

    def salt(self, tenant: str, salt_scope: str, identity: EngineIdentity) -> str:
        return f"salt-of-{salt_scope}"

    async def complete(self, request: Any) -> Any:
        return None

    async def replay(self, prefix: Prefix, canary: Canary) -> Evidence:
        return Evidence(Verification.EXACT, len(canary.token_ids))


@dataclass
class Tier:
    pinned: int = 0
    unpinned: int = 0
    deleted: list[str] = field(default_factory=list)

    def expected_hashes(self, prefix: PrefixKey) -> list[str]:
        return ["aa", "bb"]

    async def pin(self, prefix: PrefixKey) -> int:
        self.pinned += 1
        return 2

    async def unpin(self, prefix: PrefixKey) -> int:
        self.unpinned += 1
        return 2

    async def delete(self, prefix: PrefixKey, hashes: list[str]) -> None:
        self.deleted += hashes


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
def mine(database: Database) -> SqlRegistry:
    return SqlRegistry(database, "me")


@pytest.fixture
def journal(audit_log: SqlAuditLog) -> Journal:
    return Journal(audit_log, SystemClock(), PrometheusMeter(), InProcessChanges())


@pytest.fixture
def replicas(database: Database) -> Replicas:
    return Replicas(SqlLeases(database), "me", lambda holder: None)


@pytest.mark.parametrize("call", ["begin_thaw", "snapshot"])
async def test_a_thaw_whose_caller_leaves_is_noted_no_more(
    mine: SqlRegistry, journal: Journal, replicas: Replicas, call: str
) -> None:
    await freeze(mine, "w1", "aa")
    late = Late(mine, call)
    thaw = Thaw(
        registry=cast("Any", late),
        engine=NOTHING,
        kv_tier=NOTHING,
        directory=cast("Any", OneEngine()),
        generate=NOTHING,
        verify=NOTHING,
        quarantine=NOTHING,
        planner=NOTHING,
        origins=NOTHING,
        replicas=replicas,
        journal=journal,
        meter=journal.meter,
        clock=SystemClock(),
        end_session=NOTHING,
    )
    await left(late, lambda: thaw(ANN, "w1", "thawed"))
    assert await mine.intents_of_every_tenant() == []
    assert not (await mine.dependents("acme", "w1")).sessions


@pytest.mark.parametrize("call", ["begin_quarantine", "retire_scope", "store_again", "end_intent"])
async def test_a_quarantine_whose_caller_leaves_is_gone_through_with(
    mine: SqlRegistry, journal: Journal, replicas: Replicas, audit_log: SqlAuditLog, call: str
) -> None:
    window = await freeze(mine, "w1", "aa", "bb", pinned=True)
    late, tier, one = Late(mine, call), Tier(), cast("Any", OneEngine())
    registry, kv_tier = cast("Any", late), cast("Any", tier)
    stored_again: list[Intent] = []

    def store_again(window: Window, intent: Intent, token_ids: TokenIds) -> None:
        stored_again.append(intent)

    quarantine = Quarantine(
        registry,
        one,
        one,
        Scopes(registry, SystemClock()),
        one,
        journal,
        Release(registry, kv_tier, replicas),
        store_again,
    )
    canary, found = Canary((7,), ({7: -0.25},)), Evidence(Verification.MISMATCH)
    prefix = Prefix(IDS, window.cache_salt, IDENTITY)
    await left(late, lambda: quarantine(ANN, window, prefix, canary, found))
    assert [intent.operation for intent in stored_again] == [Operation.FREEZE]
    assert await mine.intents_of_every_tenant() == stored_again
    assert (tier.unpinned, tier.deleted) == (1, ["aa", "bb"])
    assert [event.event for event in await audit_log.events("acme", 5)] == ["window.quarantine"]


async def test_a_quarantine_that_nobody_waits_for_any_more_is_waited_for_at_the_end(
    mine: SqlRegistry, journal: Journal, replicas: Replicas, audit_log: SqlAuditLog
) -> None:
    """The engine computes the whole context for it, and must not lose that request half-way."""
    window = await freeze(mine, "w1", "aa", "bb", pinned=True)
    late, one, tier = Late(OneEngine(), "complete"), cast("Any", OneEngine()), cast("Any", Tier())
    quarantine = Quarantine(
        mine,
        cast("Any", late),
        one,
        Scopes(mine, SystemClock()),
        one,
        journal,
        Release(mine, tier, replicas),
        lambda *_: None,
    )
    canary, found = Canary((7,), ({7: -0.25},)), Evidence(Verification.MISMATCH)
    prefix = Prefix(IDS, window.cache_salt, IDENTITY)
    caller = asyncio.create_task(quarantine(ANN, window, prefix, canary, found))
    await asyncio.wait_for(late.done.wait(), 20)
    caller.cancel()
    settled = asyncio.create_task(quarantine.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    late.go_on.set()
    await asyncio.wait_for(settled, 20)
    assert [event.event for event in await audit_log.events("acme", 5)] == ["window.quarantine"]


async def test_a_clone_whose_caller_leaves_is_noted_no_more(
    mine: SqlRegistry, journal: Journal, replicas: Replicas
) -> None:
    await freeze(mine, "w1", "aa")
    late, tier = Late(mine, "add_clone"), Tier()
    release = Release(mine, NOTHING, replicas)
    clone = Clone(cast("Any", late), cast("Any", tier), journal, SystemClock(), release, replicas)
    await left(late, lambda: clone(ANN, "w1", "copy"))
    assert await mine.intents_of_every_tenant() == []
    assert await mine.window("acme", "copy") is not None
    assert tier.pinned == 1


@pytest.mark.parametrize("call", ["remove_session", "unreferenced"])
async def test_a_session_whose_deletion_nobody_waits_for_owes_nothing(
    mine: SqlRegistry, journal: Journal, replicas: Replicas, audit_log: SqlAuditLog, call: str
) -> None:
    await mine.add_session(a_session(), IDS)
    late, tier = Late(mine, call), Tier()
    registry, kv_tier = cast("Any", late), cast("Any", tier)
    end_session = EndSession(
        registry,
        kv_tier,
        cast("Any", OneEngine()),
        Turns(registry, audit_log, SystemClock()).in_flight,
        journal,
        SystemClock(),
        Release(registry, kv_tier, replicas),
    )
    await left(late, lambda: end_session(ANN, "s1"))
    assert await mine.intents_of_every_tenant() == []
    assert tier.deleted == ["aa", "bb"]


async def test_what_is_still_owed_when_its_payer_leaves_is_left_to_whoever_looks_next(
    mine: SqlRegistry, replicas: Replicas
) -> None:
    await freeze(mine, "w1", "aa", pinned=True)
    owed = await remove(mine, "w1", DEBT)
    assert owed is not None
    late = Late(Tier(), "unpin")
    release = Release(mine, cast("Any", late), replicas)
    await left(late, lambda: release(owed))
    assert [(intent.id, intent.holder) for intent in await mine.intents_of_every_tenant()] == [(owed.id, "")]
    assert await replicas.abandoned(owed)
