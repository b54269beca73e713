"""What every registry owes: windows, from the intent to freeze to their removal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cwm.domain.engine import Tier
from cwm.domain.errors import (
    SessionNotActiveError,
    SessionNotFoundError,
    StorageCorruptionError,
    StorageReadError,
    WindowAlreadyExistsError,
    WindowNotFoundError,
)
from cwm.domain.intent import Intent
from cwm.domain.prefix import digest
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.window import Chunk, Durability, Window, WindowQuery
from cwm.ports.registry import Dependents, Registry
from tests.contracts.nouns import (
    IDENTITY,
    IDS,
    LATER,
    NOW,
    Damage,
    a_session,
    a_window,
    being_frozen,
    clone,
    freeze,
    recorded,
    remove,
    stored,
)

pytestmark = pytest.mark.slow


async def test_an_intent_to_freeze_is_on_record_with_its_tokens_and_freezes_the_session(
    registry: Registry,
) -> None:
    await registry.add_session(a_session(), IDS)
    window = a_window(description="Füße \U0001f600\n", tags=("b", "A", "a"), tiers={"cpu": 3})
    await registry.begin_freeze(window, IDS, 0)
    assert await registry.window("acme", "w1") == window
    assert (await registry.snapshot("acme", window.snapshot_id)).token_ids == IDS
    assert await registry.session("acme", "s1") == a_session(state=SessionState.FROZEN, frozen_at=NOW)
    assert await being_frozen(registry) == ["w1"]


async def test_a_window_that_was_never_frozen_is_none(registry: Registry) -> None:
    assert await registry.window("acme", "w1") is None


async def test_a_freeze_of_a_session_that_moved_on_leaves_nothing(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    moved_on = await recorded(registry, "acme", "s1", (*IDS, 1), LATER)
    with pytest.raises(SessionNotActiveError):
        await registry.begin_freeze(a_window(), IDS, 0)
    assert await registry.window("acme", "w1") is None
    assert await registry.session("acme", "s1") == moved_on
    with pytest.raises(StorageCorruptionError):
        await registry.snapshot("acme", digest(IDS))


async def test_a_freeze_of_an_unknown_session_is_refused(registry: Registry) -> None:
    with pytest.raises(SessionNotFoundError):
        await registry.begin_freeze(a_window(), IDS, 0)


async def test_a_second_freeze_of_a_name_is_refused_and_its_session_stays_active(registry: Registry) -> None:
    first = await freeze(registry, "w1", "aa")
    await registry.add_session(a_session("s2"), IDS)
    with pytest.raises(WindowAlreadyExistsError) as refused:
        await registry.begin_freeze(a_window("w1", session_id="s2"), (9, 9), 0)
    assert refused.value.context == {"window_name": "w1"}
    assert await registry.window("acme", "w1") == first
    assert await registry.session("acme", "s2") == a_session("s2")


async def test_of_eight_freezes_of_a_name_at_once_one_wins(registry: Registry) -> None:
    for number in range(8):
        await registry.add_session(a_session(f"s{number}"), (*IDS, number))
    outcomes = await asyncio.gather(
        *(
            registry.begin_freeze(a_window("w", session_id=f"s{number}"), (*IDS, number), 0)
            for number in range(8)
        ),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(outcome) for outcome in refused] == [WindowAlreadyExistsError] * 7
    winner = next(outcome.session_id for outcome in outcomes if isinstance(outcome, Intent))
    window = await registry.window("acme", "w")
    assert window is not None
    assert window.session_id == winner
    frozen = await registry.sessions("acme", SessionQuery(frozenset({SessionState.FROZEN}), 10))
    assert [session.id for session in frozen] == [winner]


async def test_of_eight_freezes_of_a_session_at_once_one_wins(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    outcomes = await asyncio.gather(
        *(registry.begin_freeze(a_window(f"w{number}"), IDS, 0) for number in range(8)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(outcome) for outcome in refused] == [SessionNotActiveError] * 7
    assert len(await being_frozen(registry)) == 1


async def test_freezes_of_two_replicas_at_once_wait_for_each_other(
    registry: Registry, other_replica: Registry
) -> None:
    replicas = (registry, other_replica) * 8
    for number in range(len(replicas)):
        await registry.add_session(a_session(f"s{number}"), IDS)
    freezes = (
        replica.begin_freeze(a_window(f"w{number}", session_id=f"s{number}"), IDS, 0)
        for number, replica in enumerate(replicas)
    )
    await asyncio.gather(*freezes)
    assert len(await being_frozen(registry)) == len(replicas)


async def test_a_freeze_and_a_turn_at_once_leave_the_tokens_that_were_frozen(registry: Registry) -> None:
    for number in range(8):
        session_id, name = f"s{number}", f"w{number}"
        await registry.add_session(a_session(session_id), IDS)
        refused, turn = await asyncio.gather(
            registry.begin_freeze(a_window(name, session_id=session_id), IDS, 0),
            recorded(registry, "acme", session_id, (*IDS, 1), LATER),
            return_exceptions=True,
        )
        frozen = isinstance(refused, Intent)
        assert frozen == (turn is None)
        tokens = await registry.session_tokens("acme", session_id)
        assert tokens == (IDS if frozen else (*IDS, 1))


async def test_a_finished_freeze_is_durable_and_knows_its_chunks(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    window = await registry.finish_freeze(
        a_window(), stored("bb", "aa", size_bytes=2**33, tier=Tier.REDIS), LATER
    )
    assert window == a_window(
        durability=Durability.DURABLE,
        block_count=2,
        total_size_bytes=2**34,
        storage_tier=Tier.REDIS,
        tiers={"redis": 2},
        updated_at=LATER,
        proven_at=LATER,
    )
    assert await registry.window("acme", "w1") == window
    assert await registry.chunks("acme", "w1") == [Chunk("bb", 2**33), Chunk("aa", 2**33)]
    assert await being_frozen(registry) == []


async def test_a_context_without_a_whole_chunk_is_finished_without_any(registry: Registry) -> None:
    window = await freeze(registry, "w1")
    assert (window.durability, window.block_count) == (Durability.DURABLE, 0)
    assert await registry.chunks("acme", "w1") == []


async def test_finishing_a_freeze_that_another_replica_finished_changes_nothing(registry: Registry) -> None:
    finished = await freeze(registry, "w1", "aa")
    assert await registry.finish_freeze(finished, stored("cc", "dd"), NOW) == finished
    assert await registry.chunks("acme", "w1") == [Chunk("aa", 100)]


async def test_a_freeze_that_is_not_pending_cannot_be_finished(registry: Registry) -> None:
    with pytest.raises(WindowNotFoundError):
        await registry.finish_freeze(a_window(), stored("aa"), LATER)


async def test_a_failed_freeze_keeps_the_tokens_and_says_why(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await registry.fail_freeze(a_window(), "The tier is full.", LATER)
    expected = a_window(durability=Durability.FAILED, failure="The tier is full.", updated_at=LATER)
    assert await registry.window("acme", "w1") == expected
    assert (await registry.snapshot("acme", expected.snapshot_id)).token_ids == IDS
    assert await being_frozen(registry) == []


async def test_a_durable_window_cannot_fail_any_more(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    await registry.fail_freeze(window, "late", LATER)
    assert await registry.window("acme", "w1") == window


@pytest.mark.parametrize("state", [SessionState.ACTIVE, SessionState.THAWED])
async def test_an_undone_freeze_leaves_the_session_as_it_was_and_no_tokens(
    registry: Registry, state: SessionState
) -> None:
    before = a_session(state=state)
    await registry.add_session(before, IDS)
    await registry.begin_freeze(a_window(tags=("t",)), IDS, 0)
    await registry.undo_freeze(a_window(), state)
    assert await registry.session("acme", "s1") == before
    assert await registry.window("acme", "w1") is None
    with pytest.raises(StorageCorruptionError):
        await registry.snapshot("acme", digest(IDS))
    await registry.begin_freeze(a_window(), IDS, 0)


async def test_an_undone_freeze_leaves_the_tokens_of_a_window_with_equal_ids(registry: Registry) -> None:
    await freeze(registry, "kept", "aa")
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await registry.undo_freeze(a_window(), SessionState.ACTIVE)
    assert (await registry.snapshot("acme", digest(IDS))).token_ids == IDS


async def test_a_durable_window_is_not_undone(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    await registry.undo_freeze(window, SessionState.ACTIVE)
    assert await registry.window("acme", "w1") == window
    session = await registry.session("acme", window.session_id)
    assert session is not None
    assert session.state is SessionState.FROZEN


async def test_a_clone_shares_tokens_and_chunks_and_nothing_else(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa", "bb", tags=("old",))
    added = await clone(registry, source, "copy", owner="bob", description="mine", tags=("new",))
    assert added == await registry.window("acme", "copy")
    assert added == replace(
        source,
        name="copy",
        owner="bob",
        description="mine",
        tags=("new",),
        parent_window="source",
        branch_token=70,
    )
    assert await registry.chunks("acme", "copy") == await registry.chunks("acme", "source")
    assert (await registry.totals("acme")).chunks == 2


async def test_a_clone_of_an_unknown_window_is_refused(registry: Registry) -> None:
    with pytest.raises(WindowNotFoundError):
        await registry.add_clone(a_window("copy"), "source")


async def another(registry: Registry, window: Window) -> Window:
    """Deleted, and made again of another session under the same name."""
    await remove(registry, window.name)
    await registry.add_session(a_session("another"), (7, 8))
    made = a_window(window.name, session_id="another", snapshot_id=digest((7, 8)))
    await registry.begin_freeze(made, (7, 8), 0)
    return made


async def test_who_stores_a_window_that_is_another_by_now_does_not_touch_that_one(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    made = await another(registry, a_window())
    with pytest.raises(WindowNotFoundError):
        await registry.finish_freeze(a_window(), stored("aa"), LATER)
    assert await registry.fail_freeze(a_window(), "The tier is full.", LATER) is None
    assert await registry.undo_freeze(a_window(), SessionState.ACTIVE) is None
    assert await registry.window("acme", "w1") == made
    assert await being_frozen(registry) == ["w1"]
    session = await registry.session("acme", "another")
    assert session is not None
    assert session.state is SessionState.FROZEN


async def test_who_stores_a_window_that_left_its_salt_meanwhile_does_not_touch_it(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    found = await registry.store_again(a_window(), "acme#1", "salt-2", IDENTITY, LATER, pinned=False)
    assert found is not None
    with pytest.raises(WindowNotFoundError):
        await registry.finish_freeze(a_window(), stored("aa"), LATER)
    assert await registry.undo_freeze(a_window(), SessionState.ACTIVE) is None
    assert await registry.window("acme", "w1") == found[0]
    finished = await registry.finish_freeze(found[0], stored("bb"), LATER)
    assert await registry.finish_freeze(a_window(), stored("aa"), LATER) == finished
    assert await registry.chunks("acme", "w1") == [Chunk("bb", 100)]


async def test_a_clone_of_a_window_that_is_another_by_now_is_refused(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa")
    await another(registry, source)
    with pytest.raises(StorageReadError):
        await registry.add_clone(replace(source, name="copy"), "source")
    assert await registry.window("acme", "copy") is None


async def test_a_clone_of_a_window_that_was_quarantined_meanwhile_is_refused(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa")
    await registry.store_again(source, "acme#1", "salt-2", source.identity, LATER, pinned=True)
    with pytest.raises(StorageReadError):
        await registry.add_clone(replace(source, name="copy"), "source")
    assert await registry.window("acme", "copy") is None


async def test_a_freeze_under_a_scope_that_was_retired_meanwhile_is_refused(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.retire_scope("acme", "acme")
    with pytest.raises(SessionNotActiveError):
        await registry.begin_freeze(a_window(), IDS, 0)
    assert await registry.window("acme", "w1") is None


async def test_a_clone_under_a_name_that_is_taken_is_refused(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa")
    taken = await freeze(registry, "copy", "bb")
    with pytest.raises(WindowAlreadyExistsError):
        await clone(registry, source, "copy")
    assert await registry.window("acme", "copy") == taken
    assert await registry.chunks("acme", "copy") == [Chunk("bb", 100)]


async def test_a_removed_window_takes_its_tokens_and_references_with_it(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa", tags=("t",))
    await remove(registry, "w1")
    assert await registry.window("acme", "w1") is None
    assert await registry.chunks("acme", "w1") == []
    assert (await registry.totals("acme")).chunks == 0
    with pytest.raises(StorageCorruptionError):
        await registry.snapshot("acme", window.snapshot_id)
    with pytest.raises(WindowNotFoundError):
        await remove(registry, "w1")


async def test_a_frozen_session_outlives_its_last_window_and_can_be_frozen_again(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa")
    await clone(registry, source, "copy")
    await remove(registry, "source")
    frozen = await registry.session("acme", source.session_id)
    assert frozen is not None
    assert frozen.state is SessionState.FROZEN
    successor = await registry.retire_scope("acme", source.salt_scope)
    await remove(registry, "copy")
    expired = await registry.session("acme", source.session_id)
    assert expired is not None
    assert (expired.state, expired.salt_scope) == (SessionState.EXPIRED, successor)
    assert expired.updated_at == LATER
    assert await registry.session_tokens("acme", source.session_id) == IDS
    again = a_window("again", session_id=source.session_id, salt_scope=expired.salt_scope)
    await registry.begin_freeze(again, IDS, expired.revision)


async def test_the_record_of_a_deleted_session_goes_with_its_last_window(registry: Registry) -> None:
    await registry.add_session(a_session(state=SessionState.EXPIRED), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await registry.remove_session("acme", "s1", LATER)
    assert await registry.session("acme", "s1", any_state=True) is not None
    await remove(registry, "w1")
    assert await registry.session("acme", "s1", any_state=True) is None


async def test_who_removes_a_window_that_changed_meanwhile_removes_nothing(registry: Registry) -> None:
    """What it owes would be worked out from what it no longer has."""
    read = await freeze(registry, "w1", "aa", pinned=True)
    again = await registry.store_again(read, "acme#1", "salt-2", read.identity, LATER, pinned=True)
    assert again is not None
    for stale in (
        read,
        replace(again[0], durability=Durability.DURABLE),
        replace(again[0], pinned=False),
        replace(again[0], created_at=LATER),
    ):
        with pytest.raises(StorageReadError):
            await registry.remove_window(stale, LATER)
    assert await registry.window("acme", "w1") == again[0]
    await registry.remove_window(again[0], LATER)


async def test_a_window_that_changed_meanwhile_is_not_proven(registry: Registry) -> None:
    read = await freeze(registry, "w1", "aa")
    again = await registry.store_again(read, "acme#1", "salt-2", read.identity, LATER, pinned=True)
    assert again is not None
    later = LATER.replace(year=2030)
    for stale in (read, again[0]):
        await registry.proven(stale, later)
    window = await registry.window("acme", "w1")
    assert window is not None
    assert window.proven_at == LATER
    finished = await registry.finish_freeze(window, stored("aa"), LATER)
    await registry.proven(finished, later)
    window = await registry.window("acme", "w1")
    assert window is not None
    assert window.proven_at == later


async def test_a_pending_window_is_removed_with_its_tokens(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await remove(registry, "w1")
    assert await being_frozen(registry) == []
    with pytest.raises(StorageCorruptionError):
        await registry.snapshot("acme", digest(IDS))


@pytest.mark.parametrize("first", ["source", "copy"])
async def test_shared_tokens_stay_until_the_last_window_goes(registry: Registry, first: str) -> None:
    source = await freeze(registry, "source", "aa")
    copy = await clone(registry, source, "copy")
    await remove(registry, first)
    assert (await registry.snapshot("acme", source.snapshot_id)).token_ids == IDS
    await remove(registry, "copy" if first == "source" else "source")
    with pytest.raises(StorageCorruptionError):
        await registry.snapshot("acme", copy.snapshot_id)


async def test_windows_that_come_and_go_at_once_never_lose_shared_tokens(registry: Registry) -> None:
    await freeze(registry, "going", "aa")
    for turn in range(10):
        coming, going = f"w{turn}", "going" if turn == 0 else f"w{turn - 1}"
        await registry.add_session(a_session(coming), IDS)
        await asyncio.gather(
            registry.begin_freeze(a_window(coming, session_id=coming), IDS, 0),
            remove(registry, going),
        )
        assert (await registry.snapshot("acme", digest(IDS))).token_ids == IDS


async def test_a_clone_and_the_removal_of_its_source_at_once_never_lose_tokens(registry: Registry) -> None:
    source = await freeze(registry, "w0", "aa")
    for turn in range(1, 10):
        cloned, removed = await asyncio.gather(
            clone(registry, source, f"w{turn}"),
            remove(registry, source.name),
            return_exceptions=True,
        )
        assert removed is None
        if isinstance(cloned, WindowNotFoundError):
            source = await freeze(registry, f"w{turn}", "aa")
        else:
            assert (await registry.snapshot("acme", source.snapshot_id)).token_ids == IDS
            source = replace(source, name=f"w{turn}")


async def test_equal_ids_of_two_tenants_are_two_snapshots(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa", tenant="acme")
    await freeze(registry, "w1", "aa", tenant="bolt")
    await remove(registry, "w1")
    assert (await registry.snapshot("bolt", window.snapshot_id)).token_ids == IDS
    with pytest.raises(StorageCorruptionError):
        await registry.snapshot("acme", window.snapshot_id)


@pytest.mark.parametrize("at", [-1, 0, 5, 12])
async def test_a_damaged_byte_in_a_snapshot_is_noticed(registry: Registry, damage: Damage, at: int) -> None:
    window = await freeze(registry, "w1", "aa")
    await damage("snapshots", at)
    with pytest.raises(StorageCorruptionError) as noticed:
        await registry.snapshot("acme", window.snapshot_id)
    assert noticed.value.as_dict() == {
        "code": "CWM-4004",
        "message": "The stored token ids do not match their digest.",
        "retryable": False,
        "context": {"snapshot_id": window.snapshot_id},
    }


async def test_the_heirs_of_a_window_are_its_clones_continuations_and_live_sessions(
    registry: Registry,
) -> None:
    source = await freeze(registry, "source", "aa")
    await clone(registry, source, "copy")
    for session_id, state in (
        ("active", SessionState.ACTIVE),
        ("thawed", SessionState.THAWED),
        ("expired", SessionState.EXPIRED),
        ("going-on", SessionState.THAWED),
    ):
        await registry.add_session(a_session(session_id, state=state, thawed_from="source"), IDS)
    continued = a_window("continued", session_id="going-on", parent_window="source")
    await registry.begin_freeze(continued, IDS, 0)
    expected = Dependents(windows=("continued", "copy"), sessions=("active", "thawed"))
    assert await registry.dependents("acme", "source") == expected
    assert not await registry.dependents("acme", "copy")
    assert not await registry.dependents("acme", "unknown")


async def test_a_window_made_again_under_a_name_inherits_no_dependents(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa")
    await clone(registry, source, "copy")
    await registry.add_session(a_session("thawed", state=SessionState.THAWED, thawed_from="source"), IDS)
    await remove(registry, "source")
    await registry.add_session(a_session("again"), IDS)
    await registry.begin_freeze(a_window("source", session_id="again"), IDS, 0)
    assert not await registry.dependents("acme", "source")

    copy, thawed = await registry.window("acme", "copy"), await registry.session("acme", "thawed")
    assert copy is not None
    assert thawed is not None
    assert (copy.parent_window, thawed.thawed_from) == ("source", "source")


async def test_a_continuation_descends_from_the_window_its_session_was_thawed_from(
    registry: Registry,
) -> None:
    """Not from the one that has the name by the time of the freeze."""
    await freeze(registry, "source", "aa")
    await registry.add_session(a_session("thawed", state=SessionState.THAWED, thawed_from="source"), IDS)
    await remove(registry, "source")
    await registry.add_session(a_session("again"), IDS)
    await registry.begin_freeze(a_window("source", session_id="again"), IDS, 0)
    await registry.begin_freeze(a_window("heir", session_id="thawed", parent_window="source"), IDS, 0)
    assert not await registry.dependents("acme", "source")


async def test_chunks_are_shared_with_other_windows_of_the_same_salt_only(registry: Registry) -> None:
    await freeze(registry, "w1", "aa", "bb", "cc")
    await freeze(registry, "w2", "bb")
    await freeze(registry, "w3", "aa", cache_salt="another")
    await freeze(registry, "w4", "cc", tenant="bolt", cache_salt="salt-of-acme")
    assert await registry.chunks_of_other_windows("acme", "w1") == {"bb"}
    assert await registry.chunks_of_other_windows("acme", "w3") == set()


async def test_a_database_that_answers_can_be_pinged(registry: Registry) -> None:
    await registry.ping()


async def test_a_renamed_window_is_the_same_window_by_another_name(registry: Registry) -> None:
    source = await freeze(registry, "source", "aa", "bb", tags=("old",))
    await clone(registry, source, "copy")
    await registry.add_session(a_session("thawed", state=SessionState.THAWED, thawed_from="source"), IDS)
    chunks, dependents = await registry.chunks("acme", "source"), await registry.dependents("acme", "source")
    renamed = await registry.rename_window(source, "other", LATER)
    assert (
        renamed == replace(source, name="other", updated_at=LATER) == await registry.window("acme", "other")
    )
    assert await registry.window("acme", "source") is None
    assert await registry.chunks("acme", "other") == chunks
    assert await registry.dependents("acme", "other") == dependents
    copy, thawed = await registry.window("acme", "copy"), await registry.session("acme", "thawed")
    assert copy is not None
    assert thawed is not None
    assert (copy.parent_window, thawed.thawed_from) == ("other", "other")
    assert [each.name for each in (await registry.windows("acme", WindowQuery(search="other"))).windows] == [
        "other"
    ]
    listed = await registry.windows("acme", WindowQuery(tags=("old",)))
    assert ({each.name for each in listed.windows}, listed.total) == ({"copy", "other"}, 2)
    assert (await registry.windows("acme", WindowQuery(search="source"))).windows == []
    await registry.add_session(a_session("again"), IDS)
    await registry.begin_freeze(a_window("source", session_id="again"), IDS, 0)
    assert not await registry.dependents("acme", "source")


async def test_a_window_is_kept_longer_unless_it_was_replaced(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    window = await freeze(registry, "w1", "aa01", expires_at=LATER)
    other = await freeze(registry, "w2", "aa02", expires_at=LATER)
    assert await registry.keep_window(window, None, LATER)
    assert await registry.window("acme", "w1") == replace(window, expires_at=None, updated_at=LATER)
    assert not await registry.keep_window(replace(other, created_at=LATER), None, LATER)
    assert not await registry.keep_window(replace(other, name="nobody"), None, LATER)
    assert await registry.window("acme", "w2") == other


async def test_a_window_is_not_renamed_to_a_name_that_is_taken_nor_once_it_was_replaced(
    registry: Registry,
) -> None:
    source = await freeze(registry, "source", "aa")
    await clone(registry, source, "copy")
    with pytest.raises(WindowAlreadyExistsError):
        await registry.rename_window(source, "copy", LATER)
    with pytest.raises(StorageReadError):
        await registry.rename_window(replace(source, created_at=LATER), "other", LATER)
    with pytest.raises(WindowNotFoundError):
        await registry.rename_window(replace(source, name="nobody"), "other", LATER)
    assert await registry.window("acme", "source") == source


async def test_a_thaw_and_a_rename_at_once_leave_no_session_without_its_window(
    registry: Registry, other_replica: Registry
) -> None:
    window = await freeze(registry, "w0", "aa")
    for at in range(6):
        name, session = (
            f"w{at + 1}",
            a_session(f"thaw-{at}", state=SessionState.THAWED, thawed_from=window.name),
        )
        begun, renamed = await asyncio.gather(
            registry.begin_thaw(window, session.id, LATER),
            other_replica.rename_window(window, name, LATER),
            return_exceptions=True,
        )
        if isinstance(renamed, Window):
            assert isinstance(begun, WindowNotFoundError)
            window = renamed
        else:
            assert isinstance(renamed, StorageReadError)
            assert isinstance(begun, Intent)
            await registry.add_session(session, IDS, begun.id)
            assert session.id in (await registry.dependents("acme", window.name)).sessions
            window = await registry.rename_window(window, name, LATER)


async def test_of_a_freeze_and_a_rename_to_one_name_one_gets_it(
    registry: Registry, other_replica: Registry
) -> None:
    window = await freeze(registry, "w0", "aa")
    for at in range(6):
        name, session = f"w{at + 1}", a_session(f"s-{at}")
        await registry.add_session(session, (7, at))
        frozen, renamed = await asyncio.gather(
            registry.begin_freeze(a_window(name, session_id=session.id), (7, at), 0),
            other_replica.rename_window(window, name, LATER),
            return_exceptions=True,
        )
        lost = [each for each in (frozen, renamed) if isinstance(each, WindowAlreadyExistsError)]
        assert len(lost) == 1
        stored = await registry.window("acme", name)
        assert stored is not None
        assert stored.session_id == (window.session_id if lost == [frozen] else session.id)
        window = renamed if isinstance(renamed, Window) else window
