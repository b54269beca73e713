"""Thawing a window, against an engine and a cache in memory that lose, damage and forge on demand."""

from __future__ import annotations

import asyncio

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.engine import Tier
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineResponseError,
    InvalidParameterError,
    SessionAlreadyExistsError,
    TokenBudgetError,
    WindowIncompatibleError,
    WindowNotFoundError,
)
from cwm.domain.limits import LimitRules, Rate
from cwm.domain.planner import Choice
from cwm.domain.session import SessionState
from cwm.domain.turn import TurnSource
from cwm.domain.verdict import Verification
from cwm.domain.window import Durability
from tests.fakes.kv_tier import LOWER, Copy
from tests.services.replicas_of import ANN, BOB
from tests.services.windows_of import TEXT, Gateway, gateway

pytestmark = pytest.mark.slow


async def forgotten(cwm: Gateway, *tiers: Tier) -> None:
    """The engine and L1 have nothing any more, nor have ``tiers``."""
    cwm.engine.restart()
    cwm.kv_tier.evict_l1()
    for held in cwm.kv_tier.copies.values():
        for tier in tiers:
            held.pop(tier, None)


async def test_a_thawed_session_holds_the_context_that_was_frozen_and_computes_nothing_but_its_tail(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    stored = window.block_count * cwm.kv_tier.chunk_size
    assert (thawed.session.id, thawed.session.state) == ("s2", SessionState.THAWED)
    assert (thawed.session.thawed_from, thawed.session.branch_token) == ("w1", window.token_count)
    assert await cwm.registry.session_tokens("acme", "s2") == await cwm.registry.session_tokens("acme", "s1")
    assert (await cwm.history.log(ANN, TurnSource(session_id="s2"))).origin == window.turn_id
    receipt = thawed.receipt
    assert (receipt.tokens_restored, receipt.tokens_recomputed) == (stored, window.token_count - stored)
    assert (receipt.blocks_found, receipt.blocks_total) == (window.block_count, window.block_count)
    assert receipt.tokens_by_tier == {"redis": stored}
    assert (receipt.evidence.verification, receipt.evidence.tokens_compared) == (Verification.EXACT, 4)
    assert (thawed.partial, thawed.warning) == (False, None)
    assert await cwm.at_rest()
    (event, *_) = await cwm.audit.events("acme", 1)
    assert (event.event, event.outcome, event.session_id) == ("window_thaw", "success", "s2")
    assert (event.details["verification"], event.details["tokens_restored"]) == ("exact", stored)


async def test_a_thawed_session_goes_on_as_the_uninterrupted_one_would_have(cwm: Gateway) -> None:
    await cwm.window()
    uninterrupted = await cwm.thaw(ANN, "w1", "resident")
    expected = await cwm.says("resident", " and then")
    await forgotten(cwm)
    await cwm.thaw(ANN, "w1", "s2")
    assert (await cwm.says("s2", " and then")).text == expected.text
    window = await cwm.registry.window("acme", "w1")
    assert window == uninterrupted.window, "a thaw never changes it"


@pytest.mark.parametrize(
    ("lost", "split"),
    [((), {"redis": 96}), ((Tier.REDIS,), {"disk": 96}), ((Tier.REDIS, Tier.DISK), {})],
)
async def test_a_thaw_says_of_which_tier_its_tokens_came(
    cwm: Gateway, lost: tuple[Tier, ...], split: dict[str, int]
) -> None:
    await cwm.window()
    await forgotten(cwm, *lost)
    thawed = await cwm.thaw(ANN, "w1")
    assert thawed.receipt.tokens_by_tier == split
    assert thawed.partial is not bool(split)


async def test_what_the_engine_still_has_itself_is_of_no_tier(cwm: Gateway) -> None:
    await cwm.window()
    thawed = await cwm.thaw(ANN, "w1")
    assert thawed.receipt.tokens_by_tier == {"gpu": 96}


@pytest.mark.parametrize("keep", [0, 2])
async def test_blocks_that_are_gone_are_computed_again_and_the_answer_says_how_many_tokens(
    cwm: Gateway, keep: int
) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    cwm.kv_tier.lose(await cwm.key(window), keep=keep)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert (thawed.partial, thawed.receipt.tokens_restored) == (True, keep * cwm.kv_tier.chunk_size)
    missing = (window.block_count - keep) * cwm.kv_tier.chunk_size
    assert f"{missing} tokens could not be restored" in (thawed.warning or "")
    assert await cwm.registry.session_tokens("acme", "s2") == await cwm.registry.session_tokens("acme", "s1")


async def test_kv_that_continues_otherwise_is_discarded_and_the_window_stored_again_under_a_new_salt(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    expected = await cwm.says((await cwm.thaw(ANN, "w1", "before")).session.id, " so")
    await forgotten(cwm)
    key = await cwm.key(window)
    cwm.kv_tier.damage(key, 1, Copy.FORGED)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert thawed.receipt.evidence.verification is Verification.MISMATCH
    assert (thawed.receipt.recovered, thawed.receipt.tokens_restored) == (Verification.EXACT, 0)
    assert (thawed.partial, "discarded" in (thawed.warning or "")) == (True, True)
    assert (await cwm.says("s2", " so")).text == expected.text
    await cwm.settle()
    again = await cwm.registry.window("acme", "w1")
    assert again is not None
    assert (again.durability, again.cache_salt != window.cache_salt) == (Durability.DURABLE, True)
    assert not set(cwm.kv_tier.expected_hashes(key) or ()) & set(cwm.kv_tier.stored(window.cache_salt))
    assert await cwm.at_rest()
    await forgotten(cwm)
    clean = await cwm.thaw(ANN, "w1")
    assert (clean.receipt.evidence.verification, clean.partial) == (Verification.EXACT, False)


@pytest.mark.parametrize("reason", ["switched off", "frozen without a canary", "nothing was restored"])
async def test_what_was_not_verified_says_why(cwm: Gateway, reason: str) -> None:
    window = await cwm.window(canary=reason != "frozen without a canary")
    if reason == "nothing was restored":
        await forgotten(cwm, *LOWER)
    thawed = await cwm.thaw(ANN, window.name, verify=reason != "switched off")
    assert thawed.receipt.evidence.verification is Verification.SKIPPED
    assert reason in thawed.receipt.evidence.reason


WHOLE = len(TEXT) + 8
"""Tokens of the session that a test thaws."""


@pytest.mark.parametrize(("then", "now"), [(8192, WHOLE), (WHOLE, 8192)])
async def test_a_canary_decoded_after_more_or_fewer_tokens_is_not_replayed(
    cwm: Gateway, then: int, now: int
) -> None:
    cwm.engine.max_model_len = then
    window = await cwm.window()
    assert window.token_count == WHOLE
    cwm.engine.max_model_len = now
    cwm.directory.forget()
    evidence = (await cwm.thaw(ANN, "w1")).receipt.evidence
    assert (evidence.verification, evidence.reason) == (Verification.SKIPPED, "the context fills the model")


async def test_none_of_another_engines_kv_is_used_and_the_warning_names_what_changed(cwm: Gateway) -> None:
    await cwm.window()
    cwm.engine.fingerprint = "fp-2"
    cwm.engine.restart()
    cwm.directory.forget()
    thawed = await cwm.thaw(ANN, "w1")
    assert (thawed.receipt.tokens_restored, thawed.partial) == (0, True)
    assert "fingerprint was fp-1, is fp-2" in (thawed.warning or "")
    assert thawed.receipt.evidence.reason == "another engine froze the window"


async def test_an_engine_that_became_another_while_it_was_asked_ends_the_thaw(cwm: Gateway) -> None:
    await cwm.window()
    cwm.engine.fingerprint = "fp-2"
    with pytest.raises(EngineResponseError, match="changed while"):
        await cwm.thaw(ANN, "w1", "s2")
    assert await cwm.registry.session("acme", "s2") is None
    assert (await cwm.thaw(ANN, "w1", "s2")).receipt.engine_changes


async def test_a_template_that_changed_is_taken_only_where_the_caller_says_so(cwm: Gateway) -> None:
    await cwm.window()
    cwm.engine.template = "another"
    cwm.directory.forget()
    with pytest.raises(WindowIncompatibleError, match="another chat template"):
        await cwm.thaw(ANN, "w1", "s2")
    assert await cwm.registry.session("acme", "s2") is None
    assert (await cwm.thaw(ANN, "w1", "s2", accept_template=True)).session.id == "s2"


async def test_a_thaw_that_is_refused_leaves_nothing_behind(cwm: Gateway) -> None:
    await cwm.window()
    await cwm.open_session(ANN, "taken")
    with pytest.raises(WindowNotFoundError):
        await cwm.thaw(ANN, "nobody")
    with pytest.raises(SessionAlreadyExistsError):
        await cwm.thaw(ANN, "w1", "taken")
    cwm.engine.model = "other"
    cwm.directory.forget()
    with pytest.raises(EngineResponseError, match="does not serve now"):
        await cwm.thaw(ANN, "w1", "s2")
    assert await cwm.registry.intents_of_every_tenant() == []
    assert not (await cwm.registry.dependents("acme", "w1")).sessions


async def test_a_window_that_outgrew_the_model_is_refused(cwm: Gateway) -> None:
    window = await cwm.window()
    cwm.engine.max_model_len = window.token_count - 1
    cwm.directory.forget()
    with pytest.raises(InvalidParameterError, match="takes"):
        await cwm.thaw(ANN, "w1")


async def test_an_engine_that_is_away_ends_the_thaw_and_its_session_id_is_free(cwm: Gateway) -> None:
    await cwm.window()
    cwm.engine.away = True
    with pytest.raises(EngineConnectionError):
        await cwm.thaw(ANN, "w1", "s2")
    cwm.engine.away = False
    assert (await cwm.thaw(ANN, "w1", "s2")).session.id == "s2"


async def test_a_continuation_is_the_first_turn_of_the_thawed_session(cwm: Gateway) -> None:
    await cwm.window()
    thawed = await cwm.thaw(ANN, "w1", "s2", "and then?")
    assert thawed.continuation is not None
    assert thawed.continuation.text
    ids = await cwm.registry.session_tokens("acme", "s2")
    assert len(ids) == thawed.continuation.token_count > thawed.window.token_count


async def test_a_session_whose_continuation_fails_is_ended_and_may_be_asked_for_again(cwm: Gateway) -> None:
    await cwm.window()
    cwm.engine.breaks_after = 0
    with pytest.raises(CwmError) as failed:
        await cwm.thaw(ANN, "w1", "s2", "and then?")
    assert failed.value.context["deleted_session"] == "s2"
    assert await cwm.registry.session("acme", "s2") is None
    deletion = next(event for event in await cwm.audit.events("acme", 5) if event.event == "session_delete")
    assert (deletion.session_id, deletion.outcome) == ("s2", "success")
    cwm.engine.breaks_after = None
    assert (await cwm.thaw(ANN, "w1", "s2", "and then?")).continuation is not None


async def test_a_continuation_that_would_be_refused_is_refused_before_the_thaw(sqlite: Database) -> None:
    cwm = gateway(sqlite, rules=LimitRules(principal_tokens=(Rate(100, 3_600),)))
    await cwm.window()
    asked = len(cwm.engine.requests)
    with pytest.raises(TokenBudgetError):
        await cwm.thaw(ANN, "w1", "s2", "and then?")
    assert len(cwm.engine.requests) == asked
    assert await cwm.registry.session("acme", "s2") is None
    assert (await cwm.thaw(ANN, "w1", "s2")).session.id == "s2", "without one it is no turn"
    await cwm.settle()


async def test_a_plan_to_compute_loads_nothing_and_is_no_loss(sqlite: Database) -> None:
    cwm = gateway(sqlite, choice=Choice.RECOMPUTE)
    await cwm.window()
    await forgotten(cwm)
    thawed = await cwm.thaw(ANN, "w1")
    assert (thawed.receipt.tokens_restored, thawed.partial) == (0, False)
    await cwm.settle()


async def test_without_lmcache_a_window_is_computed_from_its_tokens(cwm: Gateway) -> None:
    cwm.kv_tier.present = False
    await cwm.window()
    cwm.engine.restart()
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert (thawed.receipt.tokens_restored, thawed.receipt.blocks_total, thawed.partial) == (0, 0, False)


async def test_a_caller_who_leaves_has_the_engines_request_waited_for_at_the_end(cwm: Gateway) -> None:
    """Dropping it during a load can kill the engine."""
    await cwm.window()
    cwm.engine.gate = asyncio.Event()
    cwm.engine.asked.clear()
    caller = asyncio.create_task(cwm.thaw(ANN, "w1", "s2"))
    await asyncio.wait_for(cwm.engine.asked.wait(), 10)
    caller.cancel()
    await asyncio.wait([caller])
    settled = asyncio.create_task(cwm.thaw.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not settled.done()
    cwm.engine.gate.set()
    await asyncio.wait_for(settled, 10)
    assert await cwm.registry.session("acme", "s2") is None
    assert await cwm.registry.intents_of_every_tenant() == []


async def test_who_thaws_anothers_window_of_the_tenant_owns_the_session(cwm: Gateway) -> None:
    await cwm.window()
    thawed = await cwm.thaw(BOB, "w1", "s2")
    assert thawed.session.owner == BOB.subject
    (event, *_) = await cwm.audit.events("acme", 1)
    assert event.details["owner"] == ANN.subject


def counted(cwm: Gateway, name: str) -> dict[str, float]:
    samples = cwm.meter.samples(buckets=False)
    return {next(iter(s.labels.values())): s.value for s in samples if s.name == name and s.value}


async def test_a_thaw_tells_where_its_tokens_came_from_how_long_each_phase_took_and_what_was_proven(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    before = counted(cwm, "cwm_prompt_tokens_total")
    await cwm.thaw(ANN, "w1")
    after = counted(cwm, "cwm_prompt_tokens_total")
    assert after["redis"] == 96
    assert after["computed"] - before["computed"] == window.token_count - 96
    assert set(counted(cwm, "cwm_thaw_phase_seconds_sum")) == {"prefetch", "engine", "verify"}
    assert counted(cwm, "cwm_verifications_total") == {"exact": 1}


async def test_a_phase_that_did_not_happen_is_not_timed(cwm: Gateway) -> None:
    cwm.kv_tier.present = False
    await cwm.window()
    await cwm.thaw(ANN, "w1")
    assert set(counted(cwm, "cwm_thaw_phase_seconds_count")) == {"engine"}
    assert counted(cwm, "cwm_verifications_total") == {"skipped": 1}
