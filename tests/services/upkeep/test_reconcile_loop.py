"""When a gateway looks after the whole, and when it only says that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit import AuditEvent
from cwm.domain.errors import EngineConnectionError, StorageWriteError
from cwm.domain.intent import Intent
from cwm.domain.upkeep import Outcome, Step
from cwm.services.kv.release import Release
from cwm.services.replicas import Replicas
from cwm.services.upkeep.reconcile import Reconcile
from tests.contracts.nouns import IDS, a_session, a_window


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

    async def hand_over(self, write: Any) -> None:
        pass

    async def lead(self) -> bool:
        return False

    async def tell_loss(self, at: datetime) -> None:
        pass


@dataclass
class Unread:
    """An audit log that nobody reads."""

    async def record(self, event: AuditEvent) -> None:
        pass


@dataclass(frozen=True)
class Clocked:
    clock: SystemClock
    audit: Unread = field(default_factory=Unread)
    meter: PrometheusMeter = field(default_factory=PrometheusMeter)


@dataclass
class NoLmcache:
    async def facts(self) -> None:
        return None


@dataclass
class Looks:
    """A patrol that writes down what it is asked for; ``away`` counts down looks that have to be postponed."""

    away: int = 0
    asked: asyncio.Queue[tuple[bool, datetime]] = field(default_factory=asyncio.Queue)

    async def __call__(
        self, limit: int, before: datetime, *, dry_run: bool, after_loss: bool = False
    ) -> list[Step]:
        self.asked.put_nowait((after_loss, before))
        self.away -= 1
        return [Step("store_again", "", "w1", Outcome.POSTPONED)] if self.away >= 0 else []

    async def next(self) -> tuple[bool, datetime]:
        return await asyncio.wait_for(self.asked.get(), 10)


async def nothing_to_retain(*, dry_run: bool) -> list[Step]:
    return []


def gateway(name: str, database: Database, looks: Looks) -> Reconcile:
    """One of a fleet, with nothing to do but to look."""
    clock, nothing = SystemClock(), cast("Any", None)
    registry, cache = SqlRegistry(database, name), cast("Any", NoLmcache())
    replicas = Replicas(SqlLeases(database), name, lambda _: None)
    return Reconcile(
        registry,
        cache,
        replicas,
        nothing,
        nothing,
        Release(registry, cache, replicas),
        nothing,
        cast("Any", looks),
        cast("Any", nothing_to_retain),
        cast("Any", Clocked(clock)),
        8,
    )


@dataclass
class Resuming:
    """A freeze that is gone on with; ``given_up`` is whether its intent seemed to be nobody's meanwhile."""

    replicas: Replicas
    fails: Exception | None = None
    given_up: bool | None = None

    async def resume(self, intent: Intent) -> None:
        self.given_up = await self.replicas.abandoned(replace(intent, holder=self.replicas.me))
        if self.fails is not None:
            raise self.fails


async def resumed(database: Database, fails: Exception | None = None) -> tuple[Resuming, bool]:
    """A gateway goes on with what it had given up itself; and whether it is given up again afterwards."""
    reconcile = gateway("a", database, Looks())
    await reconcile.registry.add_session(a_session(token_count=len(IDS)), IDS)
    intent = await reconcile.registry.begin_freeze(a_window(), IDS, 0)
    reconcile.replicas.let_go(intent)
    resuming = Resuming(reconcile.replicas, fails)
    reconcile.freeze = cast("Any", resuming)
    with suppress(KeyError):
        await reconcile()
    (left,) = await reconcile.registry.intents_of_every_tenant()
    return resuming, await reconcile.replicas.abandoned(left)


@dataclass
class AwayOnce:
    """A registry that cannot be written the first time that something is handed over."""

    real: Any
    asked: int = 0
    handed_over: asyncio.Event = field(default_factory=asyncio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def hand_over(self, tenant: str, intent_id: str) -> None:
        self.asked += 1
        if self.asked == 1:
            raise StorageWriteError("The database cannot be reached.")
        await self.real.hand_over(tenant, intent_id)
        self.handed_over.set()


@asynccontextmanager
async def running(*gateways: Reconcile) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run(60.0)) for each in gateways]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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


async def test_what_a_gateway_that_does_not_lead_sees_lost_is_read_back_by_the_one_that_leads(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.upkeep.reconcile.BEAT_SECONDS", 0.02)
    leads, follows = Looks(), Looks()
    leader, follower = gateway("a", database, leads), gateway("b", database, follows)
    async with running(leader):
        assert not (await leads.next())[0]
        async with running(follower):
            seen = follower.journal.clock.now()
            follower.lost()
            after_loss, before = await leads.next()
    assert after_loss
    assert before >= seen
    assert follows.asked.empty()


async def test_a_loss_is_read_back_until_all_of_it_was_and_no_longer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.upkeep.reconcile.BEAT_SECONDS", 0.02)
    looks = Looks()
    leader = gateway("a", database, looks)
    async with running(leader):
        await looks.next()
        looks.away = 1
        leader.lost()
        first = await looks.next()
        leader.soon()
        assert await looks.next() == first
        leader.soon()
        assert not (await looks.next())[0]


async def test_who_leads_next_knows_what_was_lost(database: Database) -> None:
    looks = Looks()
    await Replicas(SqlLeases(database), "gone", lambda _: None).tell_loss(SystemClock().now())
    async with running(gateway("b", database, looks)):
        assert (await looks.next())[0]


async def test_what_a_gateway_takes_up_again_is_nobody_elses_to_undo(database: Database) -> None:
    resuming, given_up_again = await resumed(database)
    assert resuming.given_up is False
    assert not given_up_again


@pytest.mark.parametrize("fails", [EngineConnectionError("away"), KeyError("an answer that nobody expected")])
async def test_what_a_gateway_took_up_in_vain_is_given_up_again(database: Database, fails: Exception) -> None:
    resuming, given_up_again = await resumed(database, fails)
    assert resuming.given_up is False
    assert given_up_again


async def test_what_a_gateway_gives_up_while_the_database_is_away_is_left_to_whoever_leads(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.upkeep.reconcile.BEAT_SECONDS", 0.02)
    leader, follower = gateway("a", database, Looks()), gateway("b", database, Looks())
    assert await leader.replicas.lead()
    await follower.registry.add_session(a_session(token_count=len(IDS)), IDS)
    intent = await follower.registry.begin_freeze(a_window(), IDS, 0)
    away = AwayOnce(follower.registry)
    follower.registry = cast("Any", away)
    follower.release = Release(follower.registry, follower.kv_tier, follower.replicas)
    await follower.release.leave(intent)
    await follower.replicas.beat()
    (left,) = await leader.registry.intents_of_every_tenant()
    assert not await leader.replicas.abandoned(left)
    async with running(follower):
        await asyncio.wait_for(away.handed_over.wait(), 20)
    (left,) = await leader.registry.intents_of_every_tenant()
    assert await leader.replicas.abandoned(left)
    await follower.replicas.hand_over(follower._hand_over)
    assert away.asked == 2


async def test_what_is_taken_over_from_a_gateway_that_gave_it_up_is_not_its_own_any_more(
    database: Database,
) -> None:
    leader, follower = gateway("a", database, Looks()), gateway("b", database, Looks())
    await leader.replicas.beat()
    await follower.registry.add_session(a_session(token_count=len(IDS)), IDS)
    intent = await follower.registry.begin_freeze(a_window(), IDS, 0)
    await follower.release.leave(intent)
    (left,) = await leader.registry.intents_of_every_tenant()
    assert await leader.registry.take_over(left, "a")
    await follower.replicas.hand_over(follower._hand_over)
    (taken,) = await follower.registry.intents_of_every_tenant()
    assert taken.holder == "a"
    assert not await follower.replicas.abandoned(taken)


@dataclass
class Unheard:
    """A registry whose first answer about what was taken over gets lost on the way."""

    real: Any
    lost: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def take_over(self, intent: Intent, holder: str) -> bool:
        taken: bool = await self.real.take_over(intent, holder)
        if not self.lost:
            self.lost = True
            raise StorageWriteError("The database cannot be reached.")
        return taken


async def test_what_was_taken_over_without_an_answer_is_taken_over_again(database: Database) -> None:
    reconcile = gateway("a", database, Looks())
    await reconcile.registry.add_session(a_session(token_count=len(IDS)), IDS)
    await SqlRegistry(database, "gone").begin_freeze(a_window(), IDS, 0)
    reconcile.registry = cast("Any", Unheard(reconcile.registry))
    resuming = Resuming(reconcile.replicas)
    reconcile.freeze = cast("Any", resuming)
    await reconcile()
    assert resuming.given_up is None
    (ours,) = await reconcile.registry.intents_of_every_tenant()
    assert ours.holder == "a"
    await reconcile()
    assert resuming.given_up is False
