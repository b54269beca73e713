"""Freezing a session, against an engine and a cache in memory that lose, refuse and go away on demand."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.canary import Canary, Origin
from cwm.domain.engine import Tier
from cwm.domain.errors import (
    EngineConnectionError,
    EngineResponseError,
    InvalidWindowNameError,
    SessionNotActiveError,
    SessionNotFoundError,
    StorageQuotaExceededError,
    StorageWriteError,
    WindowAlreadyExistsError,
)
from cwm.domain.session import SessionState
from cwm.domain.verdict import Verification
from cwm.domain.window import Durability, Retention
from tests.fakes.kv_tier import LOWER, Copy
from tests.services.replicas_of import ANN, BOB
from tests.services.turns.talk import TITLE, asked
from tests.services.windows_of import TEXT, Gateway, gateway

pytestmark = pytest.mark.slow


async def state(cwm: Gateway, session_id: str = "s1") -> SessionState:
    session = await cwm.registry.session("acme", session_id)
    assert session is not None
    return session.state


async def test_a_frozen_session_is_a_window_whose_every_block_is_below_l1_and_pinned_once(
    cwm: Gateway,
) -> None:
    ids = await cwm.session()
    frozen = await cwm.freeze(ANN, "s1", "w1", "what it is", ["a", "b"])
    window = frozen.window
    assert await cwm.registry.window("acme", "w1") == window
    assert (window.durability, window.storage_tier) == (Durability.DURABLE, Tier.REDIS)
    assert (window.description, window.tags, window.pinned) == ("what it is", ("a", "b"), True)
    assert (window.token_count, window.block_count) == (len(ids), (len(ids) - 1) // cwm.kv_tier.chunk_size)
    assert (await cwm.registry.snapshot("acme", window.snapshot_id)).token_ids == ids
    chunks = await cwm.registry.chunks("acme", "w1")
    stored = cwm.kv_tier.stored(window.cache_salt)
    assert [chunk.hash for chunk in chunks] == cwm.kv_tier.expected_hashes(await cwm.key(window))
    assert all(stored[chunk.hash] >= set(LOWER) for chunk in chunks)
    assert await cwm.kv_tier.pins(window.cache_salt) == {chunk.hash: 1 for chunk in chunks}
    assert await state(cwm) is SessionState.FROZEN
    assert await cwm.at_rest()
    assert (await cwm.events())[0] == ("window_freeze", "success")
    assert (frozen.window.warning, frozen.freeze_time_ms > 0) == (None, True)


async def test_a_frozen_session_takes_no_further_turn(cwm: Gateway) -> None:
    await cwm.window()
    with pytest.raises(SessionNotActiveError):
        await cwm.says("s1", "more")


async def test_blocks_are_pinned_before_the_engine_is_asked_to_store_them(cwm: Gateway) -> None:
    """Sweeps of a quota run between any two steps."""
    await cwm.session()
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    freezing = asyncio.create_task(cwm.freeze(ANN, "s1", "w1"))
    await asyncio.wait_for(cwm.engine.asked.wait(), 10)
    (salt,) = await cwm.registry.salts_of_every_tenant()
    assert await cwm.kv_tier.pinned_total(salt) > 0
    cwm.engine.gate.set()
    assert (await freezing).window.pinned


async def test_a_freeze_that_fails_after_its_caller_has_left_leaves_no_error_unread(cwm: Gateway) -> None:
    unread: list[BaseException] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Tasks that earlier tests left behind have no exception.
        if "exception" in context:
            unread.append(context["exception"])

    asyncio.get_running_loop().set_exception_handler(note)
    await cwm.session()
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    freezing = asyncio.create_task(cwm.freeze(ANN, "s1", "w1"))
    await asyncio.wait_for(cwm.engine.asked.wait(), 10)
    freezing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await freezing
    cwm.engine.away = True
    cwm.engine.gate.set()

    await cwm.freeze.settle()
    gc.collect()

    assert unread == []
    assert await state(cwm) is SessionState.ACTIVE


async def test_what_is_kept_as_long_as_there_is_room_is_not_pinned(cwm: Gateway) -> None:
    window = await cwm.window(retention=Retention.BEST_EFFORT, ttl_seconds=60)
    assert (window.pinned, await cwm.kv_tier.pins(window.cache_salt)) == (False, {})
    assert window.expires_at == window.created_at + timedelta(seconds=60)


async def canary_of(cwm: Gateway, name: str = "w1") -> Canary | None:
    window = await cwm.registry.window("acme", name)
    assert window is not None
    return await cwm.registry.canary("acme", window.snapshot_id, window.cache_salt)


async def origin_of(cwm: Gateway, name: str = "w1") -> Origin:
    canary = await canary_of(cwm, name)
    assert canary is not None
    return canary.origin


async def forgotten(cwm: Gateway) -> None:
    """The engine has no KV that it computed itself any more."""
    while await cwm.kv_tier.storing():
        pass
    cwm.engine.restart()


async def test_a_canary_is_kept_unless_nobody_wants_it(cwm: Gateway) -> None:
    for name, wanted in (("w1", True), ("w2", False)):
        await cwm.open_session(ANN, name)
        await cwm.says(name, f"{name} has words of its own, enough for two blocks of thirty-two tokens.")
        await cwm.freeze(ANN, name, name, canary=wanted)
        canary = await canary_of(cwm, name)
        assert (canary is not None) is wanted
        assert canary is None or {33, 65} <= set(canary.look.places)


async def test_a_canary_of_what_the_engine_computed_itself_is_computed(cwm: Gateway) -> None:
    await cwm.window()
    assert await origin_of(cwm) is Origin.COMPUTED


async def test_a_canary_of_what_was_loaded_without_a_verdict_is_unproven(cwm: Gateway) -> None:
    """Also where the blocks are in the engine's own cache by now."""
    await cwm.session()
    await forgotten(cwm)
    await cwm.says("s1", " And on.")
    await cwm.freeze(ANN, "s1", "w1")
    assert await origin_of(cwm) is Origin.UNPROVEN
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.DURABLE, "that is about storage"


@pytest.mark.parametrize(("verify", "origin"), [(True, Origin.INHERITED), (False, Origin.UNPROVEN)])
async def test_a_session_that_was_thawed_hands_on_the_verdict_of_its_thaw(
    cwm: Gateway, verify: bool, origin: Origin
) -> None:
    """What it computed on top of the load rests on that alone."""
    await cwm.window()
    await forgotten(cwm)
    await cwm.thaw(ANN, "w1", "s2", verify=verify)
    await cwm.says("s2", " And on, with words that fill a block or two, as all of these texts do here.")
    await cwm.freeze(ANN, "s2", "w2")
    assert await origin_of(cwm, "w2") is origin
    await forgotten(cwm)
    verdict = (await cwm.thaw(ANN, "w2", "s3")).receipt.evidence.verification
    assert verdict is (Verification.EXACT if verify else Verification.SKIPPED)


async def test_what_was_loaded_behind_the_proven_part_makes_a_canary_unproven(cwm: Gateway) -> None:
    await cwm.window()
    await forgotten(cwm)
    await cwm.thaw(ANN, "w1", "s2")
    await cwm.says("s2", " And on, with words that fill a block or two, as all of these texts do here.")
    await forgotten(cwm)
    await cwm.freeze(ANN, "s2", "w2")
    assert await origin_of(cwm, "w2") is Origin.UNPROVEN


async def test_nothing_is_handed_on_once_the_window_that_it_came_from_was_condemned(cwm: Gateway) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    await cwm.thaw(ANN, "w1", "s2")
    await cwm.registry.doubt_windows(
        window, [chunk.hash for chunk in await cwm.registry.chunks("acme", "w1")]
    )
    await cwm.says("s2", " And on.")
    await cwm.freeze(ANN, "s2", "w2")
    assert await origin_of(cwm, "w2") is Origin.UNPROVEN


async def test_a_window_that_is_frozen_although_the_engine_evicted_it_meanwhile_has_no_canary(
    cwm: Gateway,
) -> None:
    cwm.engine.evicts_looks = True
    window = await cwm.window()
    assert (window.durability, await canary_of(cwm)) == (Durability.DURABLE, None)
    cwm.engine.evicts_looks = False
    evidence = (await cwm.thaw(ANN, "w1")).receipt.evidence
    assert (evidence.verification, "no canary" in evidence.reason) == (Verification.SKIPPED, True)


@pytest.mark.parametrize("keep", [0, 2])
async def test_blocks_that_were_lost_before_are_computed_and_stored_again(cwm: Gateway, keep: int) -> None:
    await cwm.session()
    key = await cwm.session_key()
    cwm.kv_tier.lose(key, keep=keep)
    cwm.engine.restart()
    window = (await cwm.freeze(ANN, "s1", "w1")).window
    assert window.durability is Durability.DURABLE
    assert len(cwm.kv_tier.stored(key.cache_salt)) == window.block_count


async def test_what_cannot_be_stored_leaves_the_session_as_it_was_and_no_pin_for_long(cwm: Gateway) -> None:
    await cwm.open_session(ANN, "s1")
    cwm.kv_tier.full.update(LOWER)
    await cwm.says("s1", "Once upon a time there was a Redis without any room, and a disk that was full.")
    with pytest.raises(StorageWriteError, match="Only 0 of 2 blocks"):
        await cwm.freeze(ANN, "s1", "w1")
    assert await state(cwm) is SessionState.ACTIVE
    assert await cwm.registry.window("acme", "w1") is None
    assert (await cwm.events())[0] == ("window_freeze", "CWM-4001")
    await cwm.reconcile()
    assert await cwm.at_rest()
    assert (await cwm.says("s1", " and on")).completion_tokens > 0


async def test_a_damaged_copy_is_not_taken_for_a_stored_one(cwm: Gateway) -> None:
    await cwm.session()
    key = await cwm.session_key()
    await cwm.kv_tier.drop_l1(key)
    cwm.kv_tier.damage(key, 1, Copy.BROKEN)
    window = (await cwm.freeze(ANN, "s1", "w1")).window
    assert window.durability is Durability.DURABLE
    assert (await cwm.kv_tier.prefetch(key)).complete


async def test_without_waiting_a_window_is_pending_at_first_and_durable_soon(cwm: Gateway) -> None:
    await cwm.session()
    cwm.engine.gate = asyncio.Event()
    frozen = await cwm.freeze(ANN, "s1", "w1", wait=False)
    assert frozen.window.durability is Durability.PENDING
    assert await state(cwm) is SessionState.FROZEN
    cwm.engine.gate.set()
    await cwm.freeze.settle()
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.DURABLE
    assert await cwm.at_rest()


async def test_what_cannot_be_stored_when_nobody_waits_is_a_failed_window(cwm: Gateway) -> None:
    cwm.kv_tier.full.update(LOWER)
    await cwm.session()
    await cwm.freeze(ANN, "s1", "w1", wait=False)
    await cwm.freeze.settle()
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert (window.durability, "could be stored" in (window.failure or "")) == (Durability.FAILED, True)


async def test_a_caller_who_leaves_does_not_stop_a_freeze(cwm: Gateway) -> None:
    await cwm.session()
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    caller = asyncio.create_task(cwm.freeze(ANN, "s1", "w1"))
    await asyncio.wait_for(cwm.engine.asked.wait(), 10)
    caller.cancel()
    await asyncio.wait([caller])
    cwm.engine.gate.set()
    await cwm.freeze.settle()
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.DURABLE


async def test_an_engine_that_became_another_while_it_was_asked_stores_nothing(cwm: Gateway) -> None:
    await cwm.session()
    cwm.engine.fingerprint = "fp-2"
    with pytest.raises(EngineResponseError, match="changed while"):
        await cwm.freeze(ANN, "s1", "w1")
    assert await state(cwm) is SessionState.ACTIVE
    assert (await cwm.freeze(ANN, "s1", "w1")).window.identity.fingerprint == "fp-2"


@pytest.mark.parametrize("known", [False, True])
async def test_an_lmcache_that_is_away_is_not_as_if_there_were_none(cwm: Gateway, *, known: bool) -> None:
    cwm.kv_tier.away = not known
    await cwm.open_session(ANN, "s1")
    await cwm.says("s1", TEXT)
    cwm.kv_tier.away = True
    with pytest.raises(EngineConnectionError):
        await cwm.freeze(ANN, "s1", "w1")
    assert await state(cwm) is SessionState.ACTIVE
    assert await cwm.registry.window("acme", "w1") is None


async def test_without_lmcache_the_tokens_are_kept_and_the_answer_says_so(cwm: Gateway) -> None:
    cwm.kv_tier.present = False
    ids = await cwm.session()
    frozen = await cwm.freeze(ANN, "s1", "w1")
    assert (frozen.window.block_count, frozen.window.durability) == (0, Durability.DURABLE)
    assert "no LMCache" in (frozen.window.warning or "")
    assert (await cwm.registry.snapshot("acme", frozen.window.snapshot_id)).token_ids == ids


async def test_a_context_shorter_than_a_block_is_kept_without_a_pin_and_the_answer_says_so(
    cwm: Gateway,
) -> None:
    await cwm.session(text="short")
    frozen = await cwm.freeze(ANN, "s1", "w1")
    assert (frozen.window.block_count, frozen.window.pinned) == (0, False)
    assert "shorter than one block" in (frozen.window.warning or "")


async def test_what_is_not_to_be_frozen_is_refused_and_nothing_is_begun(cwm: Gateway) -> None:
    await cwm.open_session(ANN, "empty")
    await cwm.window("taken", "s1")
    await cwm.session("s2", "Another one of its own, long enough for a block or two of its tokens.")
    before = await cwm.registry.totals("acme")
    with pytest.raises(SessionNotFoundError):
        await cwm.freeze(ANN, "nobody", "w1")
    with pytest.raises(SessionNotActiveError, match="no tokens yet"):
        await cwm.freeze(ANN, "empty", "w1")
    with pytest.raises(SessionNotActiveError):
        await cwm.freeze(ANN, "s1", "w1")
    with pytest.raises(WindowAlreadyExistsError):
        await cwm.freeze(ANN, "s2", "taken")
    with pytest.raises(InvalidWindowNameError):
        await cwm.freeze(ANN, "s2", "no/name")
    asking = await asked(cwm, profile=TITLE, session_id="s2")
    with pytest.raises(SessionNotActiveError, match="turn in flight") as refusal:
        await cwm.freeze(ANN, "s2", "w1")
    assert refusal.value.retryable, "the turn ends"
    await asking.close()
    assert await cwm.registry.totals("acme") == before
    assert await cwm.at_rest()


async def test_no_window_is_guaranteed_beyond_the_quota(sqlite: Database) -> None:
    cwm = gateway(sqlite, quota_bytes=2_500)
    await cwm.session()
    with pytest.raises(StorageQuotaExceededError):
        await cwm.freeze(ANN, "s1", "w1")
    assert await state(cwm) is SessionState.ACTIVE
    await cwm.freeze(ANN, "s1", "w1", retention=Retention.BEST_EFFORT)
    await cwm.reconcile()
    assert await cwm.at_rest()


async def test_who_freezes_anothers_session_of_the_tenant_owns_the_window_and_is_audited(
    cwm: Gateway,
) -> None:
    await cwm.session()
    window = (await cwm.freeze(BOB, "s1", "w1")).window
    assert window.owner == BOB.subject
    (event, *_) = await cwm.audit.events("acme", 1)
    assert (event.subject, event.details["owner"]) == (BOB.subject, ANN.subject)


async def test_a_freeze_that_is_gone_on_with_ends_as_if_nothing_had_happened(sqlite: Database) -> None:
    gone, here = gateway(sqlite, name="gone"), gateway(sqlite)
    await gone.session()
    gone.engine.gate = asyncio.Event()
    pending = (await gone.freeze(ANN, "s1", "w2", wait=False)).window
    (intent,) = await here.registry.intents("acme", "w2")
    resumed = await here.freeze.resume(intent)
    assert resumed is not None
    assert (resumed.durability, resumed.snapshot_id) == (Durability.DURABLE, pending.snapshot_id)
    assert len(here.kv_tier.stored(resumed.cache_salt)) == resumed.block_count
    assert await here.freeze.resume(intent) == resumed, "it has ended, and is not begun again"
    gone.engine.gate.set()
    await gone.freeze.settle()


async def test_a_freeze_that_is_gone_on_with_on_another_engine_is_stored_under_its_own_salt(
    sqlite: Database,
) -> None:
    gone = gateway(sqlite, name="gone")
    await gone.session()
    gone.engine.gate = asyncio.Event()
    pending = (await gone.freeze(ANN, "s1", "w1", wait=False)).window
    here = gateway(sqlite)
    here.engine.fingerprint = "fp-2"
    (intent,) = await here.registry.intents("acme", "w1")
    resumed = await here.freeze.resume(intent)
    assert resumed is not None
    assert resumed.durability is Durability.DURABLE
    assert resumed.cache_salt != pending.cache_salt
    assert resumed.identity.fingerprint == "fp-2"
    gone.engine.gate.set()
    await gone.freeze.settle()


async def test_a_freeze_that_cannot_be_gone_on_with_is_left_to_whoever_looks_next(cwm: Gateway) -> None:
    await cwm.session()
    cwm.kv_tier.away = True
    await cwm.freeze(ANN, "s1", "w1", wait=False)
    await cwm.freeze.settle()
    (intent,) = await cwm.registry.intents("acme", "w1")
    assert await cwm.replicas.abandoned(intent)
    with pytest.raises(EngineConnectionError):
        await cwm.freeze.resume(intent)
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.PENDING
    assert await cwm.replicas.abandoned(intent)


async def test_what_was_proven_of_a_message_that_was_edited_since_proves_nothing(cwm: Gateway) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    before = (await cwm.registry.snapshot("acme", window.snapshot_id)).token_ids
    await cwm.registry.note_proven(thawed.session, (before[0] + 1, *before[1:]))
    await cwm.says("s2", " And on, with words that fill a block or two, as all of these texts do here.")
    await cwm.freeze(ANN, "s2", "w2")
    assert await origin_of(cwm, "w2") is Origin.UNPROVEN
