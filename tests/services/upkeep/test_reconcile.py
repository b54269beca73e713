"""A look at the whole: what crashes left, what pins are, what was lost, and what has had its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.engine import Tier
from cwm.domain.session import SessionState
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Durability, Retention, Window
from cwm.services.upkeep.retention import RetentionPolicy
from tests.fakes.kv_tier import LOWER, Copy
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow


@pytest.fixture
async def crashed(sqlite: Database) -> AsyncIterator[Gateway]:
    """A gateway whose process is known to have ended; what it still had to do never happens."""
    gone = gateway(sqlite, name="crashed")
    yield gone
    if gone.engine.gate is not None:
        gone.engine.gate.set()
    await gone.settle()


@pytest.fixture
def looking(sqlite: Database, crashed: Gateway) -> Gateway:
    """The gateway that looks, in front of the same cache."""
    return gateway(
        sqlite, crashed.engine, name="looking", has_ended=lambda holder: True if holder == "crashed" else None
    )


def told(steps: list[Step] | None) -> list[tuple[str, str, StepOutcome]]:
    assert steps is not None
    return [(step.action, step.subject, step.outcome) for step in steps]


async def window_of(cwm: Gateway, name: str = "w1") -> Window:
    window = await cwm.registry.window("acme", name)
    assert window is not None
    return window


async def test_where_nothing_happened_there_is_nothing_to_do_and_every_window_was_read_back(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    assert await cwm.reconcile() == []
    proven = (await window_of(cwm)).proven_at
    assert proven is not None
    assert proven > window.updated_at


async def test_a_freeze_whose_gateway_is_gone_is_finished(
    sqlite: Database, crashed: Gateway, looking: Gateway
) -> None:
    await crashed.session()
    await crashed.registry.begin_freeze(*await crashed.to_be_frozen("s1", "w1"))
    assert await looking.reconcile(dry_run=True) == [Step("finish_freeze", "acme", "w1", StepOutcome.PLANNED)]
    assert (await window_of(looking)).durability is Durability.PENDING
    assert told(await looking.reconcile()) == [("finish_freeze", "w1", StepOutcome.DONE)]
    window = await window_of(looking)
    assert (window.durability, window.block_count) == (Durability.DURABLE, 3)
    assert await looking.at_rest()
    assert ("reconcile.finish_freeze", "done") in await looking.events()
    assert await looking.reconcile() == []


async def test_what_a_living_gateway_is_at_is_left_alone(sqlite: Database, crashed: Gateway) -> None:
    await crashed.session()
    await crashed.registry.begin_freeze(*await crashed.to_be_frozen("s1", "w1"))
    await crashed.replicas.beat()
    assert await gateway(sqlite, crashed.engine, name="looking").reconcile() == []
    assert (await window_of(crashed)).durability is Durability.PENDING


async def test_a_freeze_that_cannot_be_finished_while_the_engine_is_away_is_finished_when_it_is_back(
    crashed: Gateway, looking: Gateway
) -> None:
    await crashed.session()
    await crashed.registry.begin_freeze(*await crashed.to_be_frozen("s1", "w1"))
    crashed.engine.away = True
    assert ("finish_freeze", "w1", StepOutcome.POSTPONED) in told(await looking.reconcile())
    crashed.engine.away = False
    assert told(await looking.reconcile()) == [("finish_freeze", "w1", StepOutcome.DONE)]


async def test_a_freeze_that_can_never_be_finished_is_a_failed_window_until_it_can(
    crashed: Gateway, looking: Gateway
) -> None:
    crashed.kv_tier.full.update(LOWER)
    await crashed.session()
    await crashed.registry.begin_freeze(*await crashed.to_be_frozen("s1", "w1"))
    steps = told(await looking.reconcile())
    assert steps[0] == ("finish_freeze", "w1", StepOutcome.FAILED)
    assert (await window_of(looking)).durability is Durability.FAILED
    crashed.kv_tier.full.clear()
    await looking.reconcile()
    assert (await window_of(looking)).durability is Durability.DURABLE
    assert await looking.at_rest()


async def test_a_thaw_whose_gateway_is_gone_no_longer_uses_its_window(
    crashed: Gateway, looking: Gateway
) -> None:
    window = await crashed.window()
    await crashed.registry.begin_thaw(window, "s2", crashed.clock.now())
    assert told(await looking.reconcile()) == [("end_thaw", "w1", StepOutcome.DONE)]
    assert not (await looking.registry.dependents("acme", "w1")).sessions
    assert await looking.at_rest()


async def test_a_clone_whose_gateway_went_before_it_was_pinned_is_pinned(
    crashed: Gateway, looking: Gateway
) -> None:
    window = await crashed.window()
    copy, _ = await crashed.registry.add_clone(replace(window, name="w2", parent_window="w1"), "w1")
    steps = told(await looking.reconcile())
    assert steps[0] == ("finish_clone", "w2", StepOutcome.DONE)
    assert ("pin", StepOutcome.DONE) in [(action, outcome) for action, _, outcome in steps]
    assert set((await looking.kv_tier.pins(copy.cache_salt)).values()) == {2}
    assert await looking.at_rest()


async def test_a_quarantine_whose_gateway_is_gone_is_gone_through_with(
    crashed: Gateway, looking: Gateway
) -> None:
    """Where the wrong KV begins is not known any more: all of it goes."""
    window = await crashed.window()
    key = await crashed.key(window)
    crashed.kv_tier.damage(key, 2, Copy.FORGED)
    await crashed.registry.begin_quarantine(window, crashed.clock.now())
    assert told(await looking.reconcile())[0] == ("finish_quarantine", "w1", StepOutcome.DONE)
    await looking.settle()
    assert await looking.reconcile() == []
    again = await window_of(looking)
    assert (again.durability, again.cache_salt) == (Durability.DURABLE, window.cache_salt)
    held = [looking.kv_tier.copies[name].values() for name in looking.kv_tier.names(key)]
    assert {copy for copies in held for copy in copies} == {Copy.SOUND}
    assert await looking.at_rest()


@pytest.mark.parametrize("times", [1, 2])
async def test_pins_that_were_lost_are_taken_again(cwm: Gateway, times: int) -> None:
    window = await cwm.window()
    for number in range(1, times):
        await cwm.clone(ANN, "w1", f"w{number + 1}")
    key = await cwm.key(window)
    for _ in range(times):
        await cwm.kv_tier.unpin(key)
    assert not await cwm.at_rest()
    (planned,) = told(await cwm.reconcile(dry_run=True))
    assert planned[0::2] == ("pin", StepOutcome.PLANNED)
    assert await cwm.kv_tier.pins(window.cache_salt) == {}
    (done,) = told(await cwm.reconcile())
    assert done[0::2] == ("pin", StepOutcome.DONE)
    assert await cwm.at_rest()


async def test_pins_that_are_too_many_are_given_back(cwm: Gateway) -> None:
    await cwm.kv_tier.pin(await cwm.key(await cwm.window()))
    (done,) = told(await cwm.reconcile())
    assert done[0::2] == ("unpin", StepOutcome.DONE)
    assert await cwm.at_rest()


async def test_pins_that_no_window_explains_are_told_and_left(cwm: Gateway) -> None:
    window = await cwm.window()
    key = await cwm.key(window)
    await cwm.kv_tier.pin(type(key)(key.root, 1, tuple(range(300, 333)), key.cache_salt))
    (told_of,) = told(await cwm.reconcile())
    assert told_of == ("unowned_pins", window.cache_salt, StepOutcome.FAILED)


async def test_pins_in_motion_are_compared_later(sqlite: Database, cwm: Gateway) -> None:
    window = await cwm.window()
    other = gateway(sqlite, cwm.engine, name="other")
    await other.replicas.beat()
    await other.registry.add_clone(replace(window, name="w2", parent_window="w1"), "w1")
    (postponed,) = told(await cwm.reconcile())
    assert postponed == ("repair_pins", window.cache_salt, StepOutcome.POSTPONED)


@pytest.mark.parametrize("copy", [None, Copy.BROKEN])
async def test_a_guaranteed_window_that_lost_a_block_is_stored_again(cwm: Gateway, copy: Copy | None) -> None:
    window = await cwm.window()
    key = await cwm.key(window)
    cwm.kv_tier.evict_l1()
    if copy is None:
        cwm.kv_tier.lose(key, keep=2)
    else:
        cwm.kv_tier.damage(key, 2, copy)
    cwm.engine.restart()
    (planned,) = await cwm.reconcile(dry_run=True) or []
    assert (planned.outcome, planned.detail) == (StepOutcome.PLANNED, "1 of 3 blocks are gone")
    (done,) = told(await cwm.reconcile())
    assert done == ("store_again", "w1", StepOutcome.DONE)
    assert (await window_of(cwm)).durability is Durability.DURABLE
    await cwm.kv_tier.drop_l1(key)
    assert (await cwm.kv_tier.prefetch(key)).complete
    assert await cwm.at_rest()


async def test_what_is_kept_as_long_as_there_is_room_may_be_lost(cwm: Gateway) -> None:
    window = await cwm.window(retention=Retention.BEST_EFFORT)
    cwm.kv_tier.lose(await cwm.key(window))
    assert await cwm.reconcile() == []


async def test_a_quota_takes_what_is_not_pinned_and_nothing_of_a_guaranteed_window(cwm: Gateway) -> None:
    window = await cwm.window()
    before = cwm.kv_tier.stored(window.cache_salt)
    cwm.kv_tier.evict(window.cache_salt)
    assert cwm.kv_tier.stored(window.cache_salt) == before
    await cwm.kv_tier.unpin(await cwm.key(window))
    cwm.kv_tier.evict(window.cache_salt)
    assert all(Tier.REDIS not in tiers for tiers in cwm.kv_tier.stored(window.cache_salt).values())


async def test_a_directory_that_forgot_everything_loses_no_window(cwm: Gateway) -> None:
    await cwm.window()
    cwm.kv_tier.forget()
    assert await cwm.reconcile() == []
    assert (await window_of(cwm)).durability is Durability.DURABLE


async def test_what_is_owed_of_a_deleted_window_is_paid_and_its_pins_are_given_back(
    crashed: Gateway, looking: Gateway
) -> None:
    window = await crashed.window()
    await crashed.registry.remove_window(window, crashed.clock.now(), await crashed.debt_of(window))
    assert set((await looking.kv_tier.pins(window.cache_salt)).values()) == {1}
    steps = told(await looking.reconcile())
    assert [step[0] for step in steps] == ["unpin", "release"]
    assert looking.kv_tier.stored(window.cache_salt) == {}
    assert await looking.at_rest()


async def test_while_lmcache_is_away_everything_is_postponed_and_nothing_fails(cwm: Gateway) -> None:
    await cwm.window()
    cwm.kv_tier.away = True
    steps = await cwm.reconcile()
    assert steps
    assert {step.outcome for step in steps} == {StepOutcome.POSTPONED}
    cwm.kv_tier.away = False
    assert await cwm.reconcile() == []


async def test_without_lmcache_there_are_no_pins_to_compare(cwm: Gateway) -> None:
    cwm.kv_tier.present = False
    await cwm.window()
    assert await cwm.reconcile() == []


async def test_one_gateway_looks_at_a_time(sqlite: Database, crashed: Gateway) -> None:
    here, there = gateway(sqlite, crashed.engine, name="here"), gateway(sqlite, crashed.engine, name="there")
    async with there.replicas.alone() as alone:
        assert alone
        assert await here.reconcile() is None
    assert await here.reconcile() == []


async def test_what_has_had_its_time_ends_and_what_is_worth_it_is_kept_first(sqlite: Database) -> None:
    policy = RetentionPolicy(session_ttl=60, session_kept=120, auto_freeze=True)
    cwm = gateway(sqlite, policy=policy)
    await cwm.window("w1", "s1", ttl_seconds=30)
    await cwm.session("s2", "A session of its own that goes on for two blocks of tokens and is left.")
    await cwm.open_session(ANN, "empty")
    cwm.clock.at += timedelta(seconds=90)
    steps = told(await cwm.reconcile())
    assert ("delete_window", "w1", StepOutcome.DONE) in steps
    assert ("freeze_session", "s2", StepOutcome.DONE) in steps
    assert ("expire_session", "empty", StepOutcome.DONE) in steps
    assert await cwm.registry.window("acme", "w1") is None
    outlived = await cwm.registry.session("acme", "s1")
    assert outlived is not None
    assert outlived.state is SessionState.EXPIRED
    kept = await cwm.registry.session("acme", "s2")
    assert kept is not None
    assert kept.state is SessionState.FROZEN
    assert await cwm.at_rest()
    cwm.clock.at += timedelta(seconds=180)
    steps = told(await cwm.reconcile())
    assert ("delete_session", "empty", StepOutcome.DONE) in steps
    assert [action for action, _, _ in steps].count("delete_window") == 1, "the window that was kept"
    assert await cwm.at_rest()
    await cwm.settle()


async def test_what_reconciliation_does_is_audited_under_the_session_or_window_that_it_is_about(
    sqlite: Database,
) -> None:
    cwm = gateway(sqlite, policy=RetentionPolicy(session_ttl=60, session_kept=120, auto_freeze=False))
    await cwm.window("w1", "s1", ttl_seconds=30)
    await cwm.open_session(ANN, "empty")
    cwm.clock.at += timedelta(seconds=90)
    await cwm.reconcile()
    events = {event.event: event for event in await cwm.audit.events("acme", 10)}
    about = {name: (event.window_name, event.session_id) for name, event in events.items()}
    assert about["reconcile.delete_window"] == ("w1", None)
    assert about["reconcile.expire_session"] == (None, "empty")
    assert events["reconcile.delete_window"].details["detail"].endswith("; its session s1 is expired")
    await cwm.settle()


async def test_what_is_owed_of_a_deleted_session_is_audited_under_that_session(
    crashed: Gateway, looking: Gateway
) -> None:
    await crashed.session()
    crashed.kv_tier.away = True
    await crashed.end_session(ANN, "s1")
    crashed.kv_tier.away = False
    assert told(await looking.reconcile()) == [("release", "s1", StepOutcome.DONE)]
    events = {event.event: event for event in await looking.audit.events("acme", 10)}
    release = events["reconcile.release"]
    assert (release.session_id, release.window_name) == ("s1", None)


async def test_a_loss_that_is_told_is_mended_in_the_background(cwm: Gateway) -> None:
    window = await cwm.window()
    key = await cwm.key(window)
    running = asyncio.create_task(cwm.reconcile.run(3_600))
    cwm.kv_tier.lose(key)
    cwm.engine.restart()
    cwm.reconcile.lost()
    async with asyncio.timeout(10):
        while not (await cwm.kv_tier.prefetch(key)).complete or not await cwm.at_rest():  # noqa: ASYNC110 - a registry tells nobody
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
