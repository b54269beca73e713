"""Thawing a window, against an engine and a cache in memory that lose, damage and forge on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.canary import Canary, Origin
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
from cwm.domain.look import Distance, Look
from cwm.domain.noise import CANNOT_BE_JUDGED
from cwm.domain.planner import Choice
from cwm.domain.session import SessionQuery, SessionState
from cwm.domain.turn import TurnSource
from cwm.domain.verdict import Verification
from cwm.domain.window import Durability, Window
from cwm.ports.kv_tier import PrefixKey
from cwm.services.kv.noises import PROBES
from cwm.services.windows.thaw import Thawed
from tests.fakes.kv_tier import LOWER, Copy, FakeKvTier
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
    evidence = receipt.evidence
    assert (evidence.verification, evidence.compared_with) == (Verification.EXACT, "canary")
    assert (evidence.distance.places, evidence.origin) == (1 + PROBES, Origin.COMPUTED)
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


async def condemned(cwm: Gateway, at: int = 1, window_name: str = "w1", session_id: str = "s2") -> Thawed:
    """The window's thaw after the KV of one of its chunks became that of something else."""
    window = await cwm.registry.window("acme", window_name)
    assert window is not None
    await forgotten(cwm)
    cwm.kv_tier.damage(await cwm.key(window), at, Copy.FORGED)
    return await cwm.thaw(ANN, window_name, session_id)


async def canary_of(cwm: Gateway, name: str = "w1") -> Canary:
    window = await cwm.registry.window("acme", name)
    assert window is not None
    canary = await cwm.registry.canary("acme", window.snapshot_id, window.cache_salt)
    assert canary is not None
    return canary


def shifted(canary: Canary, nats: float, origin: Origin) -> Canary:
    """As of an engine that expects everything by so many nats otherwise."""

    def otherwise(look: Look) -> Look:
        return Look(
            look.places, tuple({token: value + nats for token, value in each.items()} for each in look.top)
        )

    assert canary.again is not None
    return Canary(otherwise(canary.look), origin, otherwise(canary.again))


async def quarantines(cwm: Gateway) -> list[AuditEvent]:
    return [event for event in await cwm.audit.events("acme", 100) if event.event == "window.quarantine"]


async def untouched(cwm: Gateway, window: Window) -> bool:
    """The window has what it had, and nobody left its salt."""
    now = await cwm.registry.window("acme", window.name)
    stored = cwm.kv_tier.stored(window.cache_salt)
    hashes = cwm.kv_tier.expected_hashes(await cwm.key(window)) or []
    scope = await cwm.registry.current_scope("acme", "tenant:acme")
    return (
        now == window and set(hashes) <= set(stored) and scope == "tenant:acme" and not await quarantines(cwm)
    )


async def test_wrong_kv_is_a_mismatch_and_the_session_goes_on_from_computed_kv_under_a_salt_of_its_own(
    cwm: Gateway,
) -> None:
    await cwm.window()
    expected = await cwm.says((await cwm.thaw(ANN, "w1", "before")).session.id, " so")
    thawed = await condemned(cwm)
    evidence = thawed.receipt.evidence
    assert (evidence.verification, evidence.compared_with) == (Verification.MISMATCH, "canary_and_control")
    assert (evidence.distance.differing, evidence.sound_tokens) == (1 + PROBES, cwm.kv_tier.chunk_size)
    assert (thawed.session.salt_scope, thawed.receipt.tokens_restored) == ("session:s2", 0)
    assert (thawed.partial, "is wrong: it was discarded" in (thawed.warning or "")) == (True, True)
    answer = await cwm.says("s2", " so")
    assert (answer.text, answer.cached_tokens >= thawed.receipt.tokens_recomputed - 32) == (
        expected.text,
        True,
    )
    assert counted(cwm, "cwm_verifications_total") == {"exact": 1, "mismatch": 1}


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_only_the_windows_chunks_from_the_wrong_one_on_are_deleted_and_stored_again(
    cwm: Gateway, at: int
) -> None:
    window = await cwm.window()
    key, wrong = await cwm.key(window), Copy.FORGED
    names = cwm.kv_tier.names(key)
    await forgotten(cwm)
    deletions: list[list[str]] = []
    delete = cwm.kv_tier.delete

    async def noted(prefix: PrefixKey, hashes: Sequence[str]) -> int:
        deletions.append(list(hashes))
        return await delete(prefix, hashes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeKvTier, "delete", lambda _, prefix, hashes: noted(prefix, hashes))
        cwm.kv_tier.damage(key, at, wrong)
        await cwm.thaw(ANN, "w1", "s2")
        await cwm.settle()
    assert {tuple(hashes) for hashes in deletions if hashes} == {tuple(name.hash for name in names[at:])}
    again = await cwm.registry.window("acme", "w1")
    assert again is not None
    assert (again.durability, again.cache_salt) == (Durability.DURABLE, window.cache_salt)
    assert {copy for name in names for copy in cwm.kv_tier.copies[name].values()} == {Copy.SOUND}
    assert (await canary_of(cwm)).origin is (Origin.INHERITED if at else Origin.COMPUTED)
    assert await cwm.at_rest()
    await forgotten(cwm)
    clean = await cwm.thaw(ANN, "w1")
    assert (clean.receipt.evidence.verification, clean.partial) == (Verification.EXACT, False)


async def test_a_condemned_window_leaves_the_tenants_scope_and_other_conversations_as_they_are(
    cwm: Gateway,
) -> None:
    await cwm.window()
    await cwm.session(
        "other", "Quite another conversation, whose blocks of thirty-two tokens are its own, all of them."
    )
    await cwm.thaw(ANN, "w1", "elsewhere")
    await forgotten(cwm)
    await cwm.says("other", " Go on.")
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    cwm.kv_tier.damage(await cwm.key(window), 1, Copy.FORGED)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert thawed.receipt.evidence.verification is Verification.MISMATCH
    await cwm.settle()
    assert await cwm.registry.current_scope("acme", "tenant:acme") == "tenant:acme"
    sessions = await cwm.registry.sessions("acme", SessionQuery(limit=10))
    assert {session.id: session.salt_scope for session in sessions} == {
        "s1": "tenant:acme",
        "other": "tenant:acme",
        "elsewhere": "tenant:acme",
        "s2": "session:s2",
    }
    assert (await cwm.says("other", " And on.")).cached_tokens >= 96


async def test_windows_that_share_wrong_chunks_are_unproven_and_the_audit_log_names_them(
    cwm: Gateway,
) -> None:
    await cwm.window()
    await cwm.thaw(ANN, "w1", "more")
    await cwm.says("more", " And what came of it is told in another block or two of these.")
    await cwm.freeze(ANN, "more", "w2")
    assert (await canary_of(cwm, "w2")).origin.is_proven
    await condemned(cwm)
    await cwm.settle()
    assert (await canary_of(cwm, "w2")).origin is Origin.UNPROVEN
    (event,) = await quarantines(cwm)
    assert (event.outcome, event.window_name) == ("mismatch", "w1")
    deviation = event.details.pop("deviation")
    assert deviation > 20
    assert event.details == {
        "blocks_deleted": 2,
        "first_token": 32,
        "others_unproven": ["w2"],
        "scope_retired": False,
    }
    await forgotten(cwm)
    evidence = (await cwm.thaw(ANN, "w2")).receipt.evidence
    assert (evidence.verification, "nothing has proven" in evidence.reason) == (Verification.SKIPPED, True)


async def test_an_engine_that_cannot_drop_blocks_has_the_scope_left_which_is_audited(cwm: Gateway) -> None:
    window = await cwm.window()
    cwm.engine.drops = False
    thawed = await condemned(cwm)
    assert thawed.receipt.evidence.verification is Verification.MISMATCH
    await cwm.settle()
    (event,) = await quarantines(cwm)
    assert event.details["scope_retired"] is True
    assert counted(cwm, "cwm_events_total")["scope_retired"] == 1
    assert await cwm.registry.current_scope("acme", "tenant:acme") == "tenant:acme#1"
    again = await cwm.registry.window("acme", "w1")
    assert again is not None
    assert (again.durability, again.salt_scope) == (Durability.DURABLE, "tenant:acme#1")
    assert again.cache_salt != window.cache_salt
    assert await cwm.at_rest()
    await forgotten(cwm)
    clean = await cwm.thaw(ANN, "w1")
    assert (clean.receipt.evidence.verification, clean.partial) == (Verification.EXACT, False)


@pytest.mark.parametrize("nats", [0.05, 0.3, 0.8])
async def test_right_kv_of_an_engine_that_became_noisier_is_never_condemned(
    cwm: Gateway, nats: float
) -> None:
    """Measured while the engine was alone, then beside others."""
    window = await cwm.window()
    await cwm.thaw.verify.noises.measured(await cwm.directory.identity())
    cwm.engine.noise = nats
    for number in range(6):
        await forgotten(cwm)
        cwm.engine.looks += 1
        verdict = (await cwm.thaw(ANN, "w1", f"t{number}")).receipt.evidence.verification
        assert verdict in {Verification.EXACT, Verification.WITHIN_NOISE, Verification.UNDECIDED}
    assert await untouched(cwm, window)


@pytest.mark.parametrize("why", ["no room", "noise"])
async def test_where_nothing_can_be_told_the_session_is_computed_apart_and_nothing_is_deleted(
    cwm: Gateway, why: str
) -> None:
    window = await cwm.window()
    cwm.engine.room = 2 * window.token_count if why == "no room" else None
    cwm.engine.noise = 9.0 if why == "noise" else 0.0
    thawed = await condemned(cwm)
    evidence = thawed.receipt.evidence
    assert evidence.verification is Verification.UNDECIDED
    assert ("no room" if why == "no room" else "more than a nat") in evidence.reason
    assert (thawed.session.salt_scope, thawed.receipt.tokens_restored) == ("session:s2", 0)
    assert (thawed.partial, "nothing was deleted" in (thawed.warning or "")) == (True, True)
    await cwm.settle()
    assert await untouched(cwm, window)
    assert counted(cwm, "cwm_verifications_total") == {"undecided": 1}


async def test_where_looks_at_the_same_kv_differ_by_a_nat_neither_turns_nor_thaws_load_or_store(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    loud = [Distance(16, 8, 1.2, 0.3)] * 64
    await cwm.thaw.verify.noises.learn(await cwm.directory.identity(), loud, 1.2)
    await forgotten(cwm)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    evidence = thawed.receipt.evidence
    assert (evidence.verification, evidence.reason) == (Verification.SKIPPED, CANNOT_BE_JUDGED)
    assert (thawed.receipt.tokens_restored, thawed.partial) == (0, True)
    assert thawed.warning is not None
    assert thawed.warning.startswith(CANNOT_BE_JUDGED)
    await forgotten(cwm)
    stored_before = dict(cwm.kv_tier.copies)
    assert (await cwm.says("s2", "What follows is stored nowhere beside the engine.")).cached_tokens == 0
    frozen = await cwm.freeze(ANN, "s2", "w2")
    assert (frozen.window.block_count, cwm.kv_tier.copies) == (0, stored_before)
    assert await untouched(cwm, window)


async def test_kv_that_is_evicted_before_it_is_looked_at_is_not_verified_and_goes_on(cwm: Gateway) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    cwm.engine.evicts_looks = True
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert thawed.receipt.evidence.verification is Verification.SKIPPED
    assert "evicted" in thawed.receipt.evidence.reason
    assert (thawed.session.salt_scope, thawed.receipt.tokens_restored) == ("tenant:acme", 96)
    assert await untouched(cwm, window)


async def test_a_canary_of_an_engine_that_computed_otherwise_is_recorded_anew_and_nothing_is_deleted(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    now = await canary_of(cwm)
    await cwm.registry.record_canary(window, shifted(now, -3.0, Origin.COMPUTED))
    await forgotten(cwm)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    evidence = thawed.receipt.evidence
    assert (evidence.verification, evidence.distance.largest) == (Verification.CANARY_STALE, 3.0)
    assert (thawed.session.salt_scope, thawed.receipt.tokens_restored, thawed.warning) == (
        "tenant:acme",
        96,
        None,
    )
    assert await canary_of(cwm) == replace(now, origin=Origin.INHERITED)
    assert await untouched(cwm, window)
    (event,) = [each for each in await cwm.audit.events("acme", 10) if each.event == "window.canary_stale"]
    assert (event.window_name, event.severity, event.details) == ("w1", Severity.WARNING, {"deviation": 3.0})
    assert counted(cwm, "cwm_events_total")["canary_stale"] == 1
    await forgotten(cwm)
    assert (await cwm.thaw(ANN, "w1")).receipt.evidence.verification is Verification.EXACT


async def test_a_canary_that_was_recorded_on_wrong_kv_calls_none_of_it_exact(cwm: Gateway) -> None:
    window = await cwm.window()
    await forgotten(cwm)
    cwm.kv_tier.damage(await cwm.key(window), 1, Copy.FORGED)
    await cwm.thaw(ANN, "w1", "unseen", verify=False)
    await cwm.says("unseen", " And on.")
    await cwm.freeze(ANN, "unseen", "w2")
    assert (await canary_of(cwm, "w2")).origin is Origin.UNPROVEN
    await forgotten(cwm)
    thawed = await cwm.thaw(ANN, "w2", "s2")
    evidence = thawed.receipt.evidence
    assert (evidence.verification, evidence.origin) == (Verification.SKIPPED, Origin.UNPROVEN)
    assert (evidence.distance.largest, "nothing has proven" in evidence.reason) == (0.0, True)


async def test_beside_an_unproven_canary_that_differs_the_control_alone_decides(cwm: Gateway) -> None:
    window = await cwm.window()
    unproven = shifted(await canary_of(cwm), -3.0, Origin.UNPROVEN)
    await cwm.registry.record_canary(window, unproven)
    await forgotten(cwm)
    evidence = (await cwm.thaw(ANN, "w1", "s2")).receipt.evidence
    assert (evidence.verification, evidence.compared_with) == (Verification.EXACT, "canary_and_control")
    assert await untouched(cwm, window)
    assert (await condemned(cwm, session_id="s3")).receipt.evidence.verification is Verification.MISMATCH
    await cwm.settle()
    (event,) = await quarantines(cwm)
    assert (event.details["first_token"], event.details["blocks_deleted"]) == (32, 2)


@pytest.mark.parametrize("reason", ["switched off", "no canary", "nothing was restored"])
async def test_what_was_not_verified_says_why(cwm: Gateway, reason: str) -> None:
    window = await cwm.window(canary=reason != "no canary")
    if reason == "nothing was restored":
        await forgotten(cwm, *LOWER)
    thawed = await cwm.thaw(ANN, window.name, verify=reason != "switched off")
    assert thawed.receipt.evidence.verification is Verification.SKIPPED
    assert reason in thawed.receipt.evidence.reason


WHOLE = len(TEXT) + 8
"""Tokens of the session that a test thaws."""


@pytest.mark.parametrize(("then", "now"), [(8192, WHOLE), (WHOLE, 8192)])
async def test_a_canary_recorded_on_more_or_fewer_tokens_is_not_compared(
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
