"""When a gateway looks after the whole, and when it only says that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import StorageWriteError
from cwm.domain.intent import Intent
from cwm.domain.upkeep import Step, StepOutcome
from cwm.ports.engine import Completion, Generation
from cwm.services.replicas import Replicas
from cwm.services.upkeep.patrol import Patrol
from cwm.services.upkeep.reconcile import Reconcile
from tests.contracts.nouns import IDS, a_session
from tests.fakes.engine import FakeEngine
from tests.services.windows_of import Gateway, Ticking, gateway

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Follower(Replicas):
    """A replica that another one leads; with ``fails`` its beats end in an error that nobody expected."""

    fails: bool = False
    beats: list[None] = field(default_factory=list)
    beaten: asyncio.Event = field(default_factory=asyncio.Event)

    async def beat(self) -> None:
        self.beats.append(None)
        self.beaten.set()
        if self.fails:
            raise KeyError("an answer that nobody expected")

    async def lead(self) -> bool:
        return False


@dataclass(slots=True)
class Looks(Patrol):
    """A patrol that writes down what it is asked for; ``away`` counts down looks that have to be postponed."""

    away: int = 0
    asked: asyncio.Queue[tuple[bool, datetime]] = field(default_factory=asyncio.Queue)

    async def __call__(
        self, limit: int, before: datetime, *, dry_run: bool, after_loss: bool = False
    ) -> list[Step]:
        self.asked.put_nowait((after_loss, before))
        self.away -= 1
        return [Step("store_again", "", "w1", StepOutcome.POSTPONED)] if self.away >= 0 else []

    async def next(self) -> tuple[bool, datetime]:
        return await asyncio.wait_for(self.asked.get(), 10)


class Unexpected(FakeEngine):
    """An engine whose answers are, from a moment on, none that anybody expects."""

    unexpected = False

    async def complete(self, generation: Generation) -> Completion:
        answer = await super().complete(generation)
        if self.unexpected:
            raise KeyError("an answer that nobody expected")
        return answer


class AwayOnce(SqlRegistry):
    """A registry that cannot be written the first time that something is handed over."""

    def __init__(self, database: Database, holder: str) -> None:
        super().__init__(database, holder)
        self.asked = 0
        self.handed_over = asyncio.Event()

    async def hand_over(self, tenant: str, intent_id: str) -> None:
        self.asked += 1
        if self.asked == 1:
            raise StorageWriteError("The database cannot be reached.")
        await super().hand_over(tenant, intent_id)
        self.handed_over.set()


class Unheard(SqlRegistry):
    """A registry whose first answer about what was taken over gets lost on the way."""

    lost = False

    async def take_over(self, intent: Intent, holder: str) -> bool:
        taken = await super().take_over(intent, holder)
        if not self.lost:
            self.lost = True
            raise StorageWriteError("The database cannot be reached.")
        return taken


def looking(name: str, database: Database, registry: SqlRegistry | None = None) -> tuple[Gateway, Looks]:
    """One of a fleet, with nothing to do but to look."""
    cwm = gateway(database, name=name, registry=registry)
    cwm.kv_tier.present = False
    looks = Looks(
        registry=cwm.registry,
        kv_tier=cwm.kv_tier,
        directory=cwm.directory,
        freeze=cwm.freeze,
        clock=cwm.clock,
    )
    cwm.reconcile.patrol = looks
    return cwm, looks


def following(database: Database, *, fails: bool = False) -> tuple[Reconcile, Follower]:
    cwm, _ = looking("follower", database)
    follower = Follower(SqlLeases(database), "follower", lambda _: None, fails=fails)
    cwm.reconcile.replicas = follower
    return cwm.reconcile, follower


@asynccontextmanager
async def running(reconcile: Reconcile) -> AsyncIterator[None]:
    task = asyncio.create_task(reconcile.run(60.0))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def begun(cwm: Gateway) -> Intent:
    """A freeze that is written down and no further."""
    await cwm.registry.add_session(a_session(token_count=len(IDS)), IDS)
    return await cwm.registry.begin_freeze(*await cwm.to_be_frozen("s1", "w1"))


async def taken_up(cwm: Gateway) -> tuple[Intent, asyncio.Task[list[Step] | None]]:
    """A gateway goes on with what it had given up itself, and waits for its engine."""
    intent = await begun(cwm)
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    cwm.replicas.let_go(intent)
    assert await cwm.replicas.abandoned(intent)
    going_on = asyncio.create_task(cwm.reconcile())
    await asyncio.wait_for(cwm.engine.asked.wait(), 10)
    return intent, going_on


async def beaten_again(reconcile: Reconcile, follower: Follower) -> None:
    """Something was lost, and the next beat is there."""
    follower.beaten.clear()
    reconcile.lost()
    await asyncio.wait_for(follower.beaten.wait(), 10)


async def test_a_gateway_that_does_not_lead_sleeps_also_when_something_was_lost(sqlite: Database) -> None:
    reconcile, follower = following(sqlite)
    async with running(reconcile):
        await asyncio.wait_for(follower.beaten.wait(), 10)
        await beaten_again(reconcile, follower)
        for _ in range(1000):
            await asyncio.sleep(0)
    assert len(follower.beats) == 2


async def test_a_gateway_that_is_stopped_while_it_is_woken_stops(sqlite: Database) -> None:
    reconcile, follower = following(sqlite, fails=True)
    task = asyncio.create_task(reconcile.run(60.0))
    await asyncio.wait_for(follower.beaten.wait(), 10)
    for _ in range(10):
        await asyncio.sleep(0)
    reconcile.soon()
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()


async def test_a_gateway_goes_on_saying_that_it_lives_whatever_fails(sqlite: Database) -> None:
    reconcile, follower = following(sqlite, fails=True)
    async with running(reconcile):
        await asyncio.wait_for(follower.beaten.wait(), 10)
        await beaten_again(reconcile, follower)
    assert len(follower.beats) == 2


async def test_what_a_gateway_that_does_not_lead_sees_lost_is_read_back_by_the_one_that_leads(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.upkeep.reconcile.BEAT_SECONDS", 0.02)
    (leader, leads), (follower, follows) = looking("a", database), looking("b", database)
    async with running(leader.reconcile):
        assert not (await leads.next())[0]
        async with running(follower.reconcile):
            seen = follower.clock.now()
            follower.reconcile.lost()
            after_loss, before = await leads.next()
    assert after_loss
    assert before >= seen
    assert follows.asked.empty()


async def test_a_loss_is_read_back_until_all_of_it_was_and_no_longer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.upkeep.reconcile.BEAT_SECONDS", 0.02)
    leader, looks = looking("a", database)
    async with running(leader.reconcile):
        await looks.next()
        looks.away = 1
        leader.reconcile.lost()
        first = await looks.next()
        leader.reconcile.soon()
        assert await looks.next() == first
        leader.reconcile.soon()
        assert not (await looks.next())[0]


async def test_who_leads_next_knows_what_was_lost(database: Database) -> None:
    leader, looks = looking("b", database)
    await Replicas(SqlLeases(database), "gone", lambda _: None).tell_loss(Ticking().now())
    async with running(leader.reconcile):
        assert (await looks.next())[0]


async def test_what_a_gateway_takes_up_again_is_nobody_elses_to_undo(database: Database) -> None:
    cwm = gateway(database)
    intent, going_on = await taken_up(cwm)
    assert not await cwm.replicas.abandoned(intent)
    assert cwm.engine.gate is not None
    cwm.engine.gate.set()
    assert [step.outcome for step in await going_on or []] == [StepOutcome.DONE]
    assert await cwm.at_rest()


@pytest.mark.parametrize("unexpected", [False, True])
async def test_what_a_gateway_took_up_in_vain_is_given_up_again(
    database: Database, *, unexpected: bool
) -> None:
    engine = Unexpected()
    cwm = gateway(database, engine)
    intent, going_on = await taken_up(cwm)
    assert not await cwm.replicas.abandoned(intent)
    engine.unexpected, engine.away = unexpected, not unexpected
    assert engine.gate is not None
    engine.gate.set()
    with suppress(KeyError):
        await going_on
    (left,) = await cwm.registry.intents_of_every_tenant()
    assert await cwm.replicas.abandoned(left)


async def test_what_a_gateway_gives_up_while_the_database_is_away_is_left_to_whoever_leads(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.services.upkeep.reconcile.BEAT_SECONDS", 0.02)
    away = AwayOnce(database, "b")
    (leader, _), (follower, _) = looking("a", database), looking("b", database, away)
    assert await leader.replicas.lead()
    await follower.release.leave(await begun(follower))
    await follower.replicas.beat()
    (left,) = await leader.registry.intents_of_every_tenant()
    assert not await leader.replicas.abandoned(left)
    async with running(follower.reconcile):
        await asyncio.wait_for(away.handed_over.wait(), 20)
    (left,) = await leader.registry.intents_of_every_tenant()
    assert await leader.replicas.abandoned(left)
    handed_over_again: list[Intent] = []

    async def note(intent: Intent) -> None:
        handed_over_again.append(intent)

    await follower.replicas.hand_over(note)
    assert (away.asked, handed_over_again) == (2, [])


async def test_what_is_taken_over_from_a_gateway_that_gave_it_up_is_not_its_own_any_more(
    database: Database,
) -> None:
    (leader, _), (follower, _) = looking("a", database), looking("b", database)
    await leader.replicas.beat()
    await follower.release.leave(await begun(follower))
    (left,) = await leader.registry.intents_of_every_tenant()
    assert await leader.registry.take_over(left, "a")

    async def write(intent: Intent) -> None:
        await follower.registry.hand_over(intent.tenant, intent.id)

    await follower.replicas.hand_over(write)
    (taken,) = await follower.registry.intents_of_every_tenant()
    assert taken.holder == "a"
    assert not await follower.replicas.abandoned(taken)


async def test_what_was_taken_over_without_an_answer_is_taken_over_again(database: Database) -> None:
    cwm, _ = looking("a", database, Unheard(database, "a"))
    await begun(looking("gone", database)[0])
    await cwm.reconcile()
    assert cwm.engine.requests == [], "nobody goes on with what may be another's"
    (ours,) = await cwm.registry.intents_of_every_tenant()
    assert ours.holder == "a"
    await cwm.reconcile()
    assert await cwm.registry.intents_of_every_tenant() == []
