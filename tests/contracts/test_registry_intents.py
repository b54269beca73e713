"""What every registry owes: nothing is begun without a note, and a note keeps the tokens it needs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import (
    SessionAlreadyExistsError,
    SessionNotActiveError,
    StorageCorruptionError,
    StorageQuotaExceededError,
    StorageReadError,
    WindowNotFoundError,
)
from cwm.domain.intent import Debt, Intent, Operation
from cwm.domain.prefix import digest
from cwm.domain.session import SessionQuery, SessionsSince, SessionState
from cwm.domain.window import Durability, Retention
from cwm.ports.registry import Registry
from tests.contracts.nouns import (
    IDS,
    LATER,
    NOW,
    a_session,
    a_turn,
    a_window,
    being_frozen,
    clone,
    freeze,
    recorded,
    remove,
    stored,
)

pytestmark = pytest.mark.slow

DEBT = Debt("/models/tiny", 1, 32, len(IDS), pinned=True, hashes=("aa", "bb"))
BEGUN = a_window(session_id="of-w1")


async def begun(registry: Registry, name: str = "w1") -> Intent:
    await registry.add_session(a_session(f"of-{name}"), IDS)
    return await registry.begin_freeze(a_window(name, session_id=f"of-{name}"), IDS, 0)


async def snapshot_is_kept(registry: Registry) -> bool:
    try:
        return (await registry.snapshot("acme", digest(IDS))).token_ids == IDS
    except StorageCorruptionError:
        return False


async def test_a_freeze_is_noted_with_its_holder_until_it_has_finished(registry: SqlRegistry) -> None:
    mine = SqlRegistry(registry.database, "me")
    intent = await begun(mine)
    assert await registry.intents_of_every_tenant() == [intent]
    assert (intent.operation, intent.holder, intent.window_name) == (Operation.FREEZE, "me", "w1")
    assert (intent.cache_salt, intent.snapshot_id) == ("salt-of-acme", digest(IDS))
    await registry.finish_freeze(BEGUN, stored("aa"), LATER)
    assert await registry.intents_of_every_tenant() == []


async def test_intents_come_oldest_first(registry: Registry) -> None:
    for tenant, name, at in (("bolt", "w2", LATER), ("acme", "w1", NOW)):
        await registry.add_session(a_session(tenant=tenant), IDS)
        await registry.begin_freeze(a_window(name, tenant, created_at=at), IDS, 0)
    await freeze(registry, "done", "aa")
    assert await being_frozen(registry) == ["w1", "w2"]


async def test_an_undone_freeze_keeps_its_tokens_for_as_long_as_it_owes_a_pin(registry: Registry) -> None:
    await begun(registry)
    owed = await registry.undo_freeze(BEGUN, SessionState.ACTIVE, DEBT)
    assert owed is not None
    assert (owed.operation, owed.debt) == (Operation.RELEASE, DEBT)
    assert await registry.window("acme", "w1") is None
    assert await registry.intents_of_every_tenant() == [owed]
    assert await snapshot_is_kept(registry)
    await registry.end_intent("acme", owed.id)
    assert await registry.intents_of_every_tenant() == []
    assert not await snapshot_is_kept(registry)


async def test_an_ended_intent_leaves_the_tokens_of_a_window_alone(registry: Registry) -> None:
    await freeze(registry, "kept", "aa")
    await begun(registry)
    owed = await registry.undo_freeze(BEGUN, SessionState.ACTIVE, DEBT)
    assert owed is not None
    await registry.end_intent("acme", owed.id)
    assert await snapshot_is_kept(registry)


async def test_a_failed_freeze_gives_up_its_pin_and_owes_it(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(pinned=True), IDS, 0)
    owed = await registry.fail_freeze(a_window(), "full", LATER, DEBT)
    window = await registry.window("acme", "w1")
    assert window is not None
    assert (window.durability, window.pinned) == (Durability.FAILED, False)
    assert await registry.intents_of_every_tenant() == [owed]


async def test_what_a_removed_window_owes_outlives_it(registry: Registry) -> None:
    await freeze(registry, "w1", "aa", "bb", pinned=True)
    owed = await remove(registry, "w1", DEBT)
    assert owed is not None
    assert (owed.cache_salt, owed.debt, owed.begun_at) == ("salt-of-acme", DEBT, LATER)
    assert await registry.window("acme", "w1") is None
    assert await snapshot_is_kept(registry)


async def test_a_removal_that_owes_nothing_leaves_no_note(registry: Registry) -> None:
    await freeze(registry, "w1")
    assert await remove(registry, "w1", replace(DEBT, pinned=False, hashes=())) is None
    assert await registry.intents_of_every_tenant() == []


async def test_removing_a_window_ends_what_was_being_done_to_it(registry: Registry) -> None:
    await begun(registry)
    await remove(registry, "w1")
    assert await registry.intents_of_every_tenant() == []


async def test_a_clone_is_noted_until_its_pin_is_taken(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa")
    _, intent = await registry.add_clone(replace(source, name="copy"), "source")
    assert await registry.intents("acme", "copy") == [intent]
    assert intent.operation is Operation.CLONE


async def test_a_thaw_is_noted_and_its_session_ends_the_note(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    intent = await registry.begin_thaw(window, "thawed", LATER)
    assert (intent.operation, intent.session_id) == (Operation.THAW, "thawed")
    assert (await registry.dependents("acme", "w1")).sessions == ("thawed",)
    await registry.add_session(a_session("thawed", thawed_from="w1"), IDS, intent.id)
    assert await registry.intents_of_every_tenant() == []
    assert (await registry.dependents("acme", "w1")).sessions == ("thawed",)


async def test_a_thaw_keeps_the_tokens_of_a_window_that_is_deleted_meanwhile(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    intent = await registry.begin_thaw(window, "thawed", LATER)
    await remove(registry, "w1")
    assert await snapshot_is_kept(registry)
    await registry.end_intent("acme", intent.id)
    assert not await snapshot_is_kept(registry)


async def test_a_thaw_that_ends_leaves_no_tokens_of_a_window_that_was_deleted_meanwhile(
    registry: Registry,
) -> None:
    window = await freeze(registry, "w1", "aa")
    intent = await registry.begin_thaw(window, "thawed", LATER)
    await remove(registry, "w1")
    await registry.add_session(a_session("thawed", thawed_from="w1"), IDS, intent.id)
    assert not await snapshot_is_kept(registry)
    assert await registry.session_tokens("acme", "thawed") == IDS


async def test_a_thaw_of_an_unknown_window_or_into_a_taken_session_is_refused(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    with pytest.raises(SessionAlreadyExistsError):
        await registry.begin_thaw(window, window.session_id, LATER)
    await remove(registry, "w1")
    with pytest.raises(WindowNotFoundError):
        await registry.begin_thaw(window, "thawed", LATER)
    assert await registry.intents_of_every_tenant() == []


async def test_a_thaw_of_a_window_that_changed_since_it_was_read_is_refused(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    for changed in (replace(window, snapshot_id="another"), replace(window, cache_salt="another")):
        with pytest.raises(StorageReadError, match="changed meanwhile"):
            await registry.begin_thaw(changed, "thawed", LATER)
    assert await registry.intents_of_every_tenant() == []


async def test_a_quarantine_is_noted_until_the_window_is_stored_again(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    intent = await registry.begin_quarantine(window, LATER)
    assert intent is not None
    assert (intent.operation, intent.cache_salt) == (Operation.QUARANTINE, window.cache_salt)
    await registry.store_again(window, "acme#1", "salt-2", window.identity, LATER, pinned=True)
    assert [i.operation for i in await registry.intents("acme", "w1")] == [Operation.FREEZE]
    assert await registry.begin_quarantine(a_window("unknown"), LATER) is None


async def test_of_many_that_take_over_an_intent_one_has_it(
    registry: SqlRegistry, other_replica: Registry
) -> None:
    intent = await begun(registry)
    replicas = (registry, other_replica) * 4
    taken = await asyncio.gather(
        *(replica.take_over(intent, f"heir-{number}") for number, replica in enumerate(replicas))
    )
    assert sorted(taken) == [False] * 7 + [True]
    assert (await registry.intents_of_every_tenant())[0].holder == f"heir-{taken.index(True)}"


async def test_an_intent_that_its_holder_hands_over_belongs_to_nobody(registry: SqlRegistry) -> None:
    me, other = SqlRegistry(registry.database, "me"), SqlRegistry(registry.database, "other")
    intent = await begun(me)
    await other.hand_over("acme", intent.id)
    assert [i.holder for i in await registry.intents_of_every_tenant()] == ["me"]
    await me.hand_over("acme", intent.id)
    assert [i.holder for i in await registry.intents_of_every_tenant()] == [""]


async def test_guaranteed_windows_beyond_the_quota_are_refused_whole(registry: Registry) -> None:
    await freeze(registry, "first", "aa", "bb")
    await begun(registry)
    with pytest.raises(StorageQuotaExceededError) as refused:
        await registry.finish_freeze(BEGUN, stored("bb", "cc", "dd"), LATER, quota_bytes=399)
    assert refused.value.context == {"window_name": "w1", "needed_bytes": 400, "quota_bytes": 399}
    window = await registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.PENDING
    assert await registry.guaranteed_bytes("acme") == 200
    await registry.finish_freeze(BEGUN, stored("bb", "cc", "dd"), LATER, quota_bytes=400)
    assert await registry.guaranteed_bytes("acme") == 400


async def test_best_effort_windows_and_other_tenants_do_not_count_against_the_quota(
    registry: Registry,
) -> None:
    await freeze(registry, "big", "aa", "bb", retention=Retention.BEST_EFFORT)
    await freeze(registry, "theirs", "aa", "bb", tenant="bolt")
    await begun(registry)
    await registry.finish_freeze(BEGUN, stored("cc"), LATER, quota_bytes=100)
    assert await registry.guaranteed_bytes("acme") == 100


async def test_a_clone_that_would_guarantee_more_than_the_quota_is_refused(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa", retention=Retention.BEST_EFFORT)
    copy = replace(source, name="copy", retention=Retention.GUARANTEED)
    with pytest.raises(StorageQuotaExceededError):
        await registry.add_clone(copy, "source", 99)
    assert await registry.window("acme", "copy") is None
    await registry.add_clone(copy, "source", 100)


async def test_pins_are_counted_by_chunk_over_the_windows_that_hold_them(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa", "bb", pinned=True)
    await clone(registry, source, "copy", pinned=True)
    await freeze(registry, "loose", "aa", "cc")
    await freeze(registry, "theirs", "bb", tenant="bolt", cache_salt="salt-of-acme", pinned=True)
    assert await registry.pinned_chunks_of_every_tenant("salt-of-acme") == {"aa": 2, "bb": 3}
    assert await registry.salts_of_every_tenant() == ["salt-of-acme"]
    under = await registry.windows_of_every_tenant("salt-of-acme")
    assert [window.name for window in under] == ["copy", "loose", "source", "theirs"]


async def test_chunks_that_no_window_of_the_tenant_refers_to_are_named_in_order(registry: Registry) -> None:
    await freeze(registry, "w1", "bb")
    assert await registry.unreferenced("acme", "salt-of-acme", ["cc", "bb", "aa"]) == ["cc", "aa"]
    assert await registry.unreferenced("bolt", "salt-of-acme", ["bb"]) == ["bb"]


async def test_guaranteed_windows_are_proven_in_turn(registry: Registry) -> None:
    for name in ("a", "b", "short"):
        await freeze(registry, name, *(() if name == "short" else ("aa",)))
    await freeze(registry, "loose", "aa", retention=Retention.BEST_EFFORT)
    await begun(registry, "broken")
    await registry.fail_freeze(a_window("broken", session_id="of-broken"), "full", LATER)
    await registry.proven(a_window("a", session_id="of-a"), NOW)
    due = await registry.windows_to_prove_of_every_tenant(10, LATER.replace(year=2030))
    assert [window.name for window in due] == ["a", "b", "broken"]
    assert [w.name for w in await registry.windows_to_prove_of_every_tenant(10, LATER)] == ["a"]
    assert len(await registry.windows_to_prove_of_every_tenant(2, LATER.replace(year=2030))) == 2


async def test_windows_are_due_when_their_time_is_over(registry: Registry) -> None:
    await freeze(registry, "soon", "aa", expires_at=LATER)
    await freeze(registry, "ever", "aa")
    assert await registry.expired_windows_of_every_tenant(NOW, 10) == []
    assert [w.name for w in await registry.expired_windows_of_every_tenant(LATER, 10)] == ["soon"]


async def test_an_idle_session_expires_unless_it_moved_on(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    assert [s.id for s in await registry.idle_sessions_of_every_tenant(SessionsSince(LATER, 10))] == ["s1"]
    assert not await registry.expire_session(a_session(revision=7), LATER)
    assert not await registry.expire_session(a_session(created_at=LATER), LATER)
    assert await registry.expire_session(a_session(), LATER)
    assert await recorded(registry, "acme", "s1", (*IDS, 1), LATER) is None
    assert await registry.idle_sessions_of_every_tenant(SessionsSince(LATER.replace(year=2030), 10)) == []
    over = await registry.expired_sessions_of_every_tenant(SessionsSince(LATER.replace(year=2030), 10))
    assert [(session.id, session.state) for session in over] == [("s1", SessionState.EXPIRED)]
    assert await registry.expired_sessions_of_every_tenant(SessionsSince(LATER, 10)) == []


async def test_sessions_of_one_tenant_are_looked_for_or_of_all_but_some(registry: Registry) -> None:
    for tenant in ("acme", "bolt", "core"):
        await registry.add_session(a_session(f"of-{tenant}", tenant), IDS)
    for query, expected in (
        (SessionsSince(LATER, 10, "bolt"), "of-bolt"),
        (SessionsSince(LATER, 10, but=frozenset({"acme", "bolt"})), "of-core"),
    ):
        (idle,) = await registry.idle_sessions_of_every_tenant(query)
        assert idle.id == expected


async def test_a_session_in_which_a_turn_began_meanwhile_does_not_expire(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    assert await registry.begin_turn(a_turn(asked_at=LATER), LATER) is None
    assert await registry.begin_turn(a_turn(asked_at=LATER), NOW)
    assert not await registry.expire_session(a_session(), LATER)
    assert await registry.session("acme", "s1") == a_session(updated_at=LATER)
    assert await registry.expire_session(a_session(updated_at=LATER), LATER)
    assert await registry.begin_turn(a_turn("t2"), NOW) is None


async def test_an_expired_session_is_frozen_as_it_is(registry: Registry) -> None:
    await registry.add_session(a_session(state=SessionState.EXPIRED), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    session = await registry.session("acme", "s1")
    assert session is not None
    assert session.state is SessionState.EXPIRED
    await registry.undo_freeze(a_window(), SessionState.EXPIRED)
    assert await registry.session("acme", "s1") == session


async def test_a_removed_session_is_gone_with_its_tokens_and_owes_its_chunks(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    owed = await registry.remove_session("acme", "s1", LATER, "salt", DEBT)
    assert owed is not None
    assert (owed.session_id, owed.cache_salt, owed.debt) == ("s1", "salt", DEBT)
    assert await registry.session("acme", "s1") is None
    await registry.add_session(a_session(), IDS)


async def test_a_removed_session_with_a_window_leaves_nothing_but_its_id(registry: Registry) -> None:
    await registry.add_session(a_session(state=SessionState.EXPIRED), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await registry.finish_freeze(a_window(), stored("aa"), LATER)
    await registry.remove_session("acme", "s1", LATER)
    assert await registry.session("acme", "s1") is None
    assert await registry.sessions("acme", SessionQuery(limit=10)) == []
    with pytest.raises(SessionAlreadyExistsError):
        await registry.add_session(a_session(), IDS)
    assert await snapshot_is_kept(registry)
    await remove(registry, "w1")
    await registry.add_session(a_session(), IDS)


async def test_of_a_removed_sessions_metadata_only_what_its_windows_need_is_left(registry: Registry) -> None:
    kept = {"cwm.template": {"has_system": True, "options": {}}}
    session = a_session(state=SessionState.EXPIRED, metadata={"title": "secret", **kept})
    await registry.add_session(session, IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await registry.remove_session("acme", "s1", LATER)
    left = await registry.session("acme", "s1", any_state=True)
    assert left == replace(session, state=SessionState.DELETED, token_count=0, metadata=kept)
    await remove(registry, "w1")
    assert await registry.session("acme", "s1", any_state=True) is None


async def test_a_frozen_session_is_not_removed(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    with pytest.raises(SessionNotActiveError):
        await registry.remove_session("acme", window.session_id, LATER)
