"""Windows that nobody asked for: when they are made, what they hold, what they leave alone, and how many stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.autosave import AutosavePolicies, AutosavePolicy
from cwm.domain.engine import Tier
from cwm.domain.upkeep import StepOutcome
from cwm.domain.window import Durability, Retention, Window
from cwm.ports.kv_tier import PrefixKey
from cwm.services.upkeep.retention import RetentionPolicy
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import ANN
from tests.services.turns.talk import TITLE, answered, asked, took
from tests.services.windows_of import FOR_EVER, Gateway, gateway

pytestmark = pytest.mark.slow

EVERY_TURN = AutosavePolicies(AutosavePolicy(every_tokens=1))


@pytest.fixture
async def saving(sqlite: Database) -> AsyncIterator[Gateway]:
    running = gateway(sqlite, autosave=EVERY_TURN)
    yield running
    await running.settle()


@pytest.fixture
def drops(monkeypatch: pytest.MonkeyPatch) -> list[PrefixKey]:
    """What was dropped from L1."""
    drops: list[PrefixKey] = []

    async def drop_l1(_: FakeKvTier, prefix: PrefixKey) -> None:
        drops.append(prefix)

    monkeypatch.setattr(FakeKvTier, "drop_l1", drop_l1)
    return drops


async def _saved(cwm: Gateway, **more: Any) -> list[tuple[str, StepOutcome]]:
    """The steps of one run over blocks that are stored, all of whose windows are stored by now."""
    while not cwm.kv_tier.away and await cwm.kv_tier.storing():
        pass
    steps = await cwm.reconcile.autosave(dry_run=False, **more)
    await cwm.freeze.settle()
    return [(step.action, step.outcome) for step in steps]


SAVED = ("save_session", StepOutcome.DONE)
DELETED = ("delete_window", StepOutcome.DONE)


async def _windows(cwm: Gateway, session_id: str = "s1") -> list[Window]:
    return await cwm.registry.automatic_windows("acme", session_id)


async def test_the_current_turn_of_a_session_that_goes_on_becomes_a_window(saving: Gateway) -> None:
    context = await saving.session()
    before = await saving.registry.session("acme", "s1")
    assert await _saved(saving) == [SAVED]
    (window,) = await _windows(saving)
    current = await saving.registry.current_turn("acme", "s1")
    assert current is not None
    assert window.name == f"auto_s1_{current.number}"
    assert (window.turn_id, window.owner) == (current.id, "ann")
    assert (window.retention, window.pinned, window.expires_at) == (Retention.BEST_EFFORT, False, None)
    assert (await saving.registry.snapshot("acme", window.snapshot_id)).token_ids == context
    assert await saving.registry.session("acme", "s1") == before
    assert await _saved(saving) == []
    await saving.says("s1", "And then?")
    assert await _saved(saving) == [SAVED]
    assert len(await _windows(saving)) == 2
    assert await saving.at_rest()


async def test_saving_asks_the_engine_for_nothing_and_leaves_every_copy_where_it_is(
    saving: Gateway, drops: list[PrefixKey]
) -> None:
    await saving.session()
    key = await saving.session_key()
    before, requests = saving.kv_tier.stored(key.cache_salt), len(saving.engine.requests)
    assert all(Tier.CPU in tiers for tiers in before.values())
    await _saved(saving)
    assert saving.kv_tier.stored(key.cache_salt) == before
    assert (drops, len(saving.engine.requests)) == ([], requests)
    (window,) = await _windows(saving)
    assert (window.durability, window.proven_at) == (Durability.DURABLE, None)
    assert window.tiers == dict.fromkeys(("cpu", "disk", "redis"), len(before))
    assert {chunk.hash for chunk in await saving.registry.chunks("acme", window.name)} == set(before)


async def test_an_automatic_window_thaws_even_if_no_tier_has_its_kv_any_more(saving: Gateway) -> None:
    context = await saving.session()
    await _saved(saving)
    (window,) = await _windows(saving)
    whole = await saving.thaw(ANN, window.name, "again")
    assert (whole.partial, whole.receipt.tokens_recomputed < 32) == (False, True)
    saving.kv_tier.lose(await saving.key(window))
    saving.engine.restart()
    thawed = await saving.thaw(ANN, window.name, "later")
    assert thawed.receipt.tokens_restored == 0
    for session_id in ("again", "later"):
        assert await saving.registry.session_tokens("acme", session_id) == context


async def test_only_the_last_so_many_stay_and_none_that_somebody_continued_from(sqlite: Database) -> None:
    cwm = gateway(sqlite, autosave=AutosavePolicies(AutosavePolicy(every_tokens=1, keep=2)))
    await cwm.session()
    await cwm.window("asked_for", "other")
    key, names = await cwm.session_key(), list[str]()
    for number in range(5):
        await cwm.says("s1", f"Go on, {number}.")
        stored = cwm.kv_tier.stored(key.cache_salt)
        assert await _saved(cwm) == [SAVED, *[DELETED] * (number > 2)]
        assert stored.keys() <= cwm.kv_tier.stored(key.cache_salt).keys()
        names.append((await _windows(cwm))[0].name)
        if number == 0:
            await cwm.thaw(ANN, names[0], "continued")
    assert [window.name for window in await _windows(cwm)] == [names[4], names[3], names[0]]
    assert await cwm.registry.window("acme", "asked_for") is not None
    assert await cwm.at_rest()
    await cwm.settle()


async def test_a_turn_in_flight_that_may_move_the_session_is_waited_for(saving: Gateway) -> None:
    await saving.open_session(ANN, "s1")
    await took(saving, (1, 2, 3))
    running = await asked(saving)
    assert await _saved(saving) == []
    await answered(running, (1, 2, 3, 7, 8, 9, 4), (5,))
    assert await _saved(saving) == [SAVED]


async def test_a_turn_beside_the_conversation_is_not_waited_for(saving: Gateway) -> None:
    await saving.open_session(ANN, "s1")
    turn = await took(saving, (1, 2, 3))
    await asked(saving, profile=TITLE)
    assert await _saved(saving) == [SAVED]
    assert [window.turn_id for window in await _windows(saving)] == [turn.id]


async def test_of_two_conversations_under_one_id_the_current_one_is_saved(saving: Gateway) -> None:
    await saving.open_session(ANN, "s1")
    for prompt in ((1, 2), (5, 6), (1, 2, 7, 8, 9, 3), (5, 6, 7, 8, 9, 4)):
        turn = await took(saving, prompt)
    assert await _saved(saving) == [SAVED]
    assert [window.turn_id for window in await _windows(saving)] == [turn.id]


async def test_a_session_is_saved_once_it_is_long_enough_or_was_not_for_long_enough(sqlite: Database) -> None:
    policy = AutosavePolicy(every_tokens=150, every=timedelta(minutes=10))
    cwm = gateway(sqlite, autosave=AutosavePolicies(policy))
    await cwm.session()
    assert await _saved(cwm) == []
    await cwm.says("s1", "A sentence that makes the context longer.", max_tokens=32)
    assert await _saved(cwm) == [SAVED]
    await cwm.says("s1", "A word.")
    cwm.clock.at += timedelta(minutes=9)
    assert await _saved(cwm) == []
    cwm.clock.at += timedelta(minutes=1)
    assert await _saved(cwm) == [SAVED]
    cwm.clock.at += timedelta(minutes=11)
    assert await _saved(cwm) == [], "nobody used it"
    await cwm.settle()


async def test_what_is_left_is_saved_before_the_session_expires_and_goes_when_it_would(
    sqlite: Database,
) -> None:
    lifetimes = RetentionPolicy(session_ttl=86_400, session_kept=2 * 86_400, auto_freeze=False)
    cwm = gateway(sqlite, policy=lifetimes, autosave=AutosavePolicies(AutosavePolicy(every_tokens=10_000)))
    await cwm.session()
    cwm.clock.at += timedelta(hours=22)
    assert await _saved(cwm) == []
    cwm.clock.at += timedelta(hours=1, minutes=1)
    assert await _saved(cwm) == [SAVED]
    (window,) = await _windows(cwm)
    assert window.expires_at == window.created_at + timedelta(days=3)
    cwm.clock.at += timedelta(hours=1)
    assert [step.action for step in await cwm.reconcile() or []] == ["expire_session"]
    await cwm.settle()


async def test_a_gateway_that_was_away_saves_what_has_expired_meanwhile_first(sqlite: Database) -> None:
    lifetimes = RetentionPolicy(session_ttl=60, session_kept=0, auto_freeze=False)
    cwm = gateway(sqlite, policy=lifetimes, autosave=AutosavePolicies(AutosavePolicy(every_tokens=10_000)))
    await cwm.session()
    cwm.clock.at += timedelta(days=1)
    steps = await cwm.reconcile() or []
    assert [(step.action, step.outcome) for step in steps] == [
        ("save_session", StepOutcome.DONE),
        ("expire_session", StepOutcome.DONE),
    ]
    await cwm.settle()


async def test_a_tenant_has_its_own_policy_or_none(sqlite: Database) -> None:
    often, never = AutosavePolicy(every_tokens=1), None
    for policies, is_saved in (
        (AutosavePolicies(often), True),
        (AutosavePolicies(often, {"acme": never}), False),
        (AutosavePolicies(never, {"bolt": often}), False),
        (AutosavePolicies(AutosavePolicy(every_tokens=10_000), {"acme": often, "bolt": never}), True),
        (AutosavePolicies(), False),
    ):
        cwm = gateway(sqlite, autosave=policies)
        name = f"s{cwm.clock.now():%f}"
        await cwm.session(name)
        assert (name in [step.subject for step in await cwm.reconcile.autosave(dry_run=True)]) is is_saved
        await cwm.end_session(ANN, name)


async def test_a_look_that_changes_nothing_says_what_would_be_saved(saving: Gateway) -> None:
    await saving.session()
    (step,) = await saving.reconcile.autosave(dry_run=True)
    assert (step.action, step.subject, step.outcome) == ("save_session", "s1", StepOutcome.PLANNED)
    assert await _windows(saving) == []


async def test_without_an_engine_that_ever_answered_sessions_are_saved_later(sqlite: Database) -> None:
    before = gateway(sqlite, autosave=EVERY_TURN)
    await before.session("s1")
    await before.session("s2")
    started = gateway(sqlite, before.engine, autosave=EVERY_TURN)
    started.engine.away = True
    assert await _saved(started) == [("save_session", StepOutcome.POSTPONED)]
    started.engine.away = False
    assert await _saved(started) == [SAVED, SAVED]


async def test_without_lmcache_the_tokens_are_saved_and_the_blocks_are_looked_up_later(
    saving: Gateway,
) -> None:
    context = await saving.session()
    saving.kv_tier.away = True
    assert await _saved(saving) == [SAVED]
    (window,) = await _windows(saving)
    assert window.durability is Durability.PENDING
    assert (await saving.registry.snapshot("acme", window.snapshot_id)).token_ids == context
    saving.kv_tier.away = False
    assert [step.action for step in await saving.reconcile() or []] == ["finish_freeze"]
    (window,) = await _windows(saving)
    assert (window.durability, window.block_count) == (Durability.DURABLE, len(context) // 32)


async def test_a_session_that_cannot_be_saved_is_left_alone_for_an_hour(sqlite: Database) -> None:
    cwm = gateway(sqlite, autosave=EVERY_TURN, policy=FOR_EVER)
    await cwm.session()
    other = gateway(sqlite, FakeEngine(model="another"), autosave=EVERY_TURN)
    assert await _saved(other) == [("save_session", StepOutcome.FAILED)]
    assert await _saved(other) == []
    assert await _windows(other) == []


async def test_a_save_whose_gateway_died_is_finished_without_touching_l1(
    sqlite: Database, drops: list[PrefixKey]
) -> None:
    crashed = gateway(sqlite, name="crashed", autosave=EVERY_TURN)
    await crashed.session()
    key = await crashed.session_key()
    await _saved(crashed)
    (window,) = await _windows(crashed)
    again = await crashed.registry.store_again(
        window, window.salt_scope, window.cache_salt, window.identity, crashed.clock.now(), pinned=False
    )
    assert again is not None
    before = crashed.kv_tier.stored(key.cache_salt)
    looking = gateway(sqlite, crashed.engine, name="looking", has_ended=lambda holder: holder == "crashed")
    assert [step.action for step in await looking.reconcile() or []] == ["finish_freeze"]
    await looking.settle()
    assert (drops, looking.kv_tier.stored(key.cache_salt)) == ([], before)
    (finished,) = await _windows(looking)
    assert (finished.durability, finished.block_count) == (Durability.DURABLE, len(before))


async def test_a_clone_of_an_automatic_window_stays(saving: Gateway) -> None:
    await saving.session()
    await _saved(saving)
    (window,) = await _windows(saving)
    clone = await saving.clone(ANN, window.name, "mine")
    assert not clone.automatic
    assert await _windows(saving) == [window]


async def test_an_automatic_window_that_is_renamed_stays(saving: Gateway) -> None:
    await saving.session()
    await _saved(saving)
    (window,) = await _windows(saving)
    assert not (await saving.rename(ANN, window.name, "mine")).automatic
    assert await _windows(saving) == []
    assert await _saved(saving) == []


async def test_the_longest_session_id_can_be_saved(saving: Gateway) -> None:
    await saving.session("s" * 64)
    assert await _saved(saving) == [SAVED]
