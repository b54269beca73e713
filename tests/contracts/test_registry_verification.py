"""What every registry owes: canaries and their origins, windows that are doubted or stored again, scopes that are left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.tables.sessions import canaries
from cwm.domain.canary import Canary, Origin
from cwm.domain.intent import Debt, Operation
from cwm.domain.look import Look
from cwm.domain.prefix import digest
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.window import Durability, Window
from cwm.ports.registry import Registry
from tests.contracts.nouns import IDS, LATER, NOW, a_session, a_window, clone, freeze, remove, stored

CANARY = Canary(Look((33, 65), ({7: -0.25, 9: -3.5}, {8: -0.5})), Origin.COMPUTED)
OTHER = Canary(Look((33,), ({7: -0.75},)), Origin.INHERITED)


async def with_canary(
    registry: Registry,
    name: str = "w1",
    *hashes: str,
    canary: Canary = CANARY,
    ids: tuple[int, ...] = IDS,
    tenant: str = "acme",
    at: datetime = LATER,
) -> Window:
    """A durable window with a canary, of a session of its own."""
    window = a_window(
        name, tenant, session_id=f"of-{name}", snapshot_id=digest(ids), token_count=len(ids), created_at=at
    )
    await registry.add_session(a_session(f"of-{name}", tenant, token_count=len(ids)), ids)
    await registry.begin_freeze(window, ids, 0)
    return await registry.finish_freeze(window, stored(*(hashes or ("aa",))), LATER, canary)


async def canary_of(registry: Registry, window: Window) -> Canary | None:
    return await registry.canary(window.tenant, window.snapshot_id, window.cache_salt)


@pytest.mark.parametrize("origin", list(Origin))
async def test_a_canary_comes_back_with_its_origin(registry: Registry, origin: Origin) -> None:
    canary = replace(CANARY, origin=origin)
    assert await canary_of(registry, await with_canary(registry, canary=canary)) == canary


async def test_a_canary_of_an_earlier_version_is_none(registry: Registry, database: Database) -> None:
    """It has tokens that were decoded after the context; the window is there to be proven again."""
    window = await with_canary(registry)
    old = {"token_ids": [7, 8], "top": [{"7": -0.25}, {"8": -0.5}]}
    row = update(canaries).where(canaries.c.tenant == "acme").values(content=old, origin=None)
    await database.write(lambda connection: connection.execute(row))
    assert await canary_of(registry, window) is None
    assert await registry.unproven_windows_of_every_tenant(10) == [window]
    assert await registry.record_canary(window, OTHER)
    assert await canary_of(registry, window) == OTHER


async def test_a_canary_that_is_recorded_anew_replaces_the_one_before_for_clones_too(
    registry: Registry,
) -> None:
    window = await with_canary(registry)
    copy = await clone(registry, window, "w2")
    assert await registry.record_canary(copy, OTHER)
    assert await canary_of(registry, window) == await canary_of(registry, copy) == OTHER


async def test_no_canary_is_recorded_for_a_window_that_is_gone_or_under_another_salt(
    registry: Registry,
) -> None:
    window = await with_canary(registry)
    assert not await registry.record_canary(replace(window, name="nobody"), OTHER)
    assert not await registry.record_canary(replace(window, cache_salt="another"), OTHER)
    assert await canary_of(registry, window) == CANARY
    await remove(registry, "w1")
    assert not await registry.record_canary(window, OTHER)
    assert await canary_of(registry, window) is None


async def test_windows_that_share_doubted_chunks_are_unproven_and_others_keep_their_proof(
    registry: Registry,
) -> None:
    """Those under another salt, or of another tenant, have chunks of the same names and other KV."""
    window = await with_canary(registry, "w1", "aa", "bb", "cc")
    beside = await with_canary(registry, "w2", "aa", "bb", "dd", ids=(*IDS, 1))
    apart = await with_canary(registry, "w3", "aa", ids=(*IDS, 2))
    others = await with_canary(registry, "w4", "aa", "bb", "cc", tenant="rivals")
    for each in (window, beside, apart, others):
        await registry.proven(each, LATER)

    assert await registry.doubt_windows(window, ["bb", "cc"]) == ["w2"]

    found = [await canary_of(registry, each) for each in (window, beside, apart, others)]
    assert [canary.origin for canary in found if canary] == [Origin.UNPROVEN] * 2 + [Origin.COMPUTED] * 2
    assert [canary.look for canary in found if canary] == [CANARY.look] * 4
    now = [await registry.window(each.tenant, each.name) for each in (window, beside, apart, others)]
    assert [each.proven_at for each in now if each] == [None, None, LATER, LATER]
    assert {each.name for each in await registry.unproven_windows_of_every_tenant(10)} == {"w1", "w2"}


async def test_chunks_that_nobody_refers_to_make_no_window_doubtful(registry: Registry) -> None:
    window = await with_canary(registry, "w1", "aa")
    assert await registry.doubt_windows(window, ["zz"]) == []
    assert await registry.doubt_windows(window, []) == []
    assert await canary_of(registry, window) == CANARY


async def test_unproven_windows_are_the_durable_ones_with_chunks_and_no_proven_canary_the_newest_first(
    registry: Registry,
) -> None:
    unproven = replace(CANARY, origin=Origin.UNPROVEN)
    await with_canary(registry, "computed", ids=(*IDS, 1))
    await with_canary(registry, "inherited", ids=(*IDS, 2), canary=OTHER)
    await with_canary(registry, "older", ids=(*IDS, 3), canary=unproven, at=NOW)
    await with_canary(registry, "newer", ids=(*IDS, 4), canary=unproven, tenant="rivals")
    await freeze(registry, "none", "aa", ids=(*IDS, 5), created_at=NOW - timedelta(days=1))
    await freeze(registry, "short", ids=(*IDS, 6))
    await registry.add_session(a_session("of-pending"), IDS)
    await registry.begin_freeze(a_window("pending", session_id="of-pending"), IDS, 0)
    due = await registry.unproven_windows_of_every_tenant(10)
    assert [window.name for window in due] == ["newer", "older", "none"]
    assert [window.name for window in await registry.unproven_windows_of_every_tenant(2)] == [
        "newer",
        "older",
    ]


async def test_what_is_proven_of_a_session_is_proven_of_contexts_that_begin_so(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.note_proven(a_session(), IDS)
    session = await registry.session("acme", "s1")
    assert session is not None
    assert session.proven_of((*IDS, 7, 8)) == len(IDS)
    assert session.proven_of((7, *IDS[1:])) == 0
    assert session.proven_of(IDS[:-1]) == 0
    assert await registry.set_apart(a_session(), "session:s1", "salt")
    apart = await registry.session("acme", "s1")
    assert apart is not None
    assert apart.proven_of(IDS) == 0


async def test_a_session_that_is_set_apart_goes_on_under_a_scope_of_its_own(registry: Registry) -> None:
    await registry.add_session(a_session(), IDS)
    await registry.add_session(a_session("s2"), IDS)
    assert await registry.set_apart(a_session(), "session:s1", "salt")
    scopes = [await registry.session("acme", name) for name in ("s1", "s2")]
    assert [session.salt_scope for session in scopes if session] == ["session:s1", "acme"]
    assert not await registry.set_apart(a_session("nobody"), "session:nobody", "salt")
    assert not await registry.set_apart(a_session(created_at=LATER), "session:another", "salt")
    assert await registry.current_scope("acme", "acme") == "acme", "the tenant's is still in force"


async def test_a_canary_comes_back_for_its_tokens_and_salt_alone(registry: Registry) -> None:
    snapshot = (await with_canary(registry)).snapshot_id
    assert await registry.canary("acme", snapshot, "salt-of-acme") == CANARY
    assert await registry.canary("acme", snapshot, "another") is None
    assert await registry.canary("acme", "another", "salt-of-acme") is None
    assert await registry.canary("rivals", snapshot, "salt-of-acme") is None


async def test_a_window_without_a_canary_has_none(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    assert await registry.canary("acme", window.snapshot_id, window.cache_salt) is None


async def test_a_canary_goes_with_the_last_window_of_its_tokens(registry: Registry) -> None:
    window = await with_canary(registry)
    snapshot = window.snapshot_id
    await clone(registry, window, "w2")
    await remove(registry, "w1")
    assert await registry.canary("acme", snapshot, "salt-of-acme") == CANARY
    await remove(registry, "w2")
    assert await registry.canary("acme", snapshot, "salt-of-acme") is None


async def test_a_window_that_is_stored_again_is_pending_under_its_new_salt_and_refers_to_no_chunk(
    registry: Registry,
) -> None:
    window = await freeze(registry, "w1", "aa", "bb", pinned=True)
    engine = replace(window.identity, fingerprint="fp-2")
    debt = Debt("/models/tiny", 1, 32, len(IDS), pinned=True, hashes=("aa", "bb"))
    found = await registry.store_again(window, "acme#1", "salt-2", engine, LATER, pinned=True, debt=debt)
    assert found is not None
    again, intent, owed = found
    assert again == replace(
        window,
        durability=Durability.PENDING,
        salt_scope="acme#1",
        cache_salt="salt-2",
        identity=engine,
        tiers={},
        updated_at=LATER,
    )
    assert (intent.operation, intent.cache_salt) == (Operation.FREEZE, "salt-2")
    assert owed is not None
    assert (owed.operation, owed.cache_salt, owed.debt) == (Operation.RELEASE, window.cache_salt, debt)
    assert await registry.chunks("acme", "w1") == []
    await registry.finish_freeze(again, stored("cc"), LATER)
    assert [chunk.hash for chunk in await registry.chunks("acme", "w1")] == ["cc"]
    assert await registry.intents_of_every_tenant() == [owed]


async def test_a_window_that_left_its_salt_already_is_not_stored_again(registry: Registry) -> None:
    window = await freeze(registry, "w1", "aa")
    for salt in ("salt-2", "salt-3"):
        found = await registry.store_again(window, "acme#1", salt, window.identity, LATER, pinned=False)
        assert (found is not None) == (salt == "salt-2")
    missing = a_window("w2")
    assert await registry.store_again(missing, "a", "s", missing.identity, LATER, pinned=False) is None


async def test_a_window_that_left_its_salt_or_is_another_by_now_is_not_quarantined(
    registry: Registry,
) -> None:
    window = await freeze(registry, "w1", "aa")
    found = await registry.store_again(window, "acme#1", "salt-2", window.identity, LATER, pinned=False)
    assert found is not None
    assert await registry.begin_quarantine(window, LATER) is None
    assert await registry.intents("acme", "w1") == [found[1]]
    await remove(registry, "w1")
    await registry.add_session(a_session("other"), (7, 8))
    again = a_window("w1", session_id="other", snapshot_id=digest((7, 8)))
    freezing = await registry.begin_freeze(again, (7, 8), 0)
    assert await registry.begin_quarantine(window, LATER) is None
    assert await registry.store_again(window, "a", "s", window.identity, LATER, pinned=False) is None
    assert await registry.intents("acme", "w1") == [freezing]


async def test_live_sessions_leave_a_retired_scope_and_new_ones_never_enter_it(registry: Registry) -> None:
    await registry.add_session(a_session("live"), IDS)
    await registry.add_session(a_session("elsewhere", salt_scope="session:1"), IDS)
    await freeze(registry, "w1", "aa")
    assert await registry.current_scope("acme", "acme") == "acme"

    assert await registry.retire_scope("acme", "acme") == "acme#1"

    assert await registry.current_scope("acme", "acme") == "acme#1"
    scopes = {s.id: (s.state, s.salt_scope) for s in await registry.sessions("acme", SessionQuery(limit=10))}
    assert scopes == {
        "live": (SessionState.ACTIVE, "acme#1"),
        "elsewhere": (SessionState.ACTIVE, "session:1"),
        "of-w1": (SessionState.FROZEN, "acme"),
    }


async def test_a_session_that_is_added_to_a_retired_scope_gets_the_one_in_force_unless_it_was_thawed(
    registry: Registry,
) -> None:
    """Of a thawed one all KV is under the salt of its window."""
    await freeze(registry, "w1", "aa")
    await registry.retire_scope("acme", "acme")
    added = await registry.add_session(a_session(), IDS)
    assert added == await registry.session("acme", "s1") == a_session(salt_scope="acme#1")
    thawed = a_session("thawed", thawed_from="w1")
    assert await registry.add_session(thawed, IDS) == await registry.session("acme", "thawed") == thawed


async def test_no_session_stays_in_a_scope_that_is_retired_as_it_is_added(
    registry: Registry, other_replica: Registry
) -> None:
    for turn in range(10):
        name = f"shared{turn}"
        await asyncio.gather(
            registry.add_session(a_session(f"s{turn}", salt_scope=name), IDS),
            other_replica.retire_scope("acme", name),
        )
    scopes = {session.salt_scope for session in await registry.sessions("acme", SessionQuery(limit=100))}
    assert scopes == {f"shared{turn}#1" for turn in range(10)}


async def test_an_expired_session_leaves_a_retired_scope_too_for_it_can_still_be_frozen(
    registry: Registry,
) -> None:
    await registry.add_session(a_session(state=SessionState.EXPIRED), IDS)
    await registry.retire_scope("acme", "acme")
    assert await registry.session("acme", "s1") == a_session(state=SessionState.EXPIRED, salt_scope="acme#1")


@pytest.mark.parametrize("state", [SessionState.ACTIVE, SessionState.THAWED])
async def test_a_session_that_a_freeze_gives_back_does_not_enter_a_scope_that_was_retired_meanwhile(
    registry: Registry, state: SessionState
) -> None:
    await registry.add_session(a_session(state=state), IDS)
    await registry.begin_freeze(a_window(), IDS, 0)
    await registry.retire_scope("acme", "acme")
    await registry.retire_scope("acme", "acme#1")
    await registry.undo_freeze(a_window(), state)
    assert await registry.session("acme", "s1") == a_session(state=state, salt_scope="acme#2")


async def test_a_scope_is_retired_once_however_many_found_it_wrong(registry: Registry) -> None:
    found = await asyncio.gather(*(registry.retire_scope("acme", "acme") for _ in range(4)))
    assert set(found) == {"acme#1"}
    assert await registry.retire_scope("acme", "acme#1") == "acme#2"
    assert await registry.retire_scope("acme", "acme") == "acme#2"


async def test_a_scope_is_retired_for_one_tenant_alone(registry: Registry) -> None:
    await registry.retire_scope("acme", "shared")
    assert await registry.current_scope("rivals", "shared") == "shared"
