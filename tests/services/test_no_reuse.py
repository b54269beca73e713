"""An engine that neither stores nor loads KV, beside an LMCache that is there: to its gateway as one without."""

from __future__ import annotations

import pytest

from cwm.domain.errors import EngineResponseError
from cwm.domain.intent import Operation
from cwm.domain.planner import Decision
from cwm.domain.turn import TurnSource
from cwm.domain.upkeep import StepOutcome
from cwm.domain.verdict import Verification
from cwm.domain.window import Durability
from cwm.services.engines.directory import EngineDirectory
from cwm.services.health.doctor import Doctor, Examined
from cwm.services.health.findings import FindingStatus
from cwm.services.health.inspect import Inspect, Status
from cwm.services.kv.reuse import Reuse
from cwm.services.turns.reading.compare import Compare
from cwm.services.upkeep.watchdog import Watchdog
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import Copy
from tests.services.fleet_of import Fleet
from tests.services.replicas_of import ANN, OPERATOR, OPERATORS
from tests.services.windows_of import Gateway, Ticking

WHY = "vLLM's prefix cache is off."


def close(cwm: Gateway, engine: FakeEngine | None = None, why: str = WHY) -> None:
    """The engine starts again, and reuses no KV from now on; without ``why`` it does again."""
    engine = engine or cwm.engine
    engine.restart()
    engine.no_reuse = why
    cwm.directory.forget()


async def pins(cwm: Gateway) -> int:
    salts = await cwm.registry.salts_of_every_tenant()
    return sum([sum((await cwm.kv_tier.pins(salt)).values()) for salt in salts])


async def test_a_freeze_keeps_the_tokens_stores_nothing_and_says_why(cwm: Gateway) -> None:
    close(cwm)
    ids = await cwm.session()
    asked = len(cwm.engine.requests)
    frozen = await cwm.freeze(ANN, "s1", "w1")
    window = frozen.window
    assert (window.durability, window.block_count, window.pinned) == (Durability.DURABLE, 0, False)
    assert (window.warning or "").startswith(WHY)
    assert len(cwm.engine.requests) == asked, "nothing is computed for a proof that cannot be had"
    assert (cwm.kv_tier.copies, cwm.kv_tier.attached) == ({}, {})
    assert (await cwm.registry.snapshot("acme", window.snapshot_id)).token_ids == ids
    kept = await cwm.registry.window("acme", "w1")
    assert kept is not None
    assert kept.warning == window.warning
    assert await cwm.at_rest()


async def test_a_thaw_computes_all_and_says_why(cwm: Gateway) -> None:
    close(cwm)
    window = await cwm.window()
    thawed = await cwm.thaw(ANN, "w1", "s2")
    receipt = thawed.receipt
    assert (receipt.tokens_restored, receipt.tokens_recomputed) == (0, window.token_count)
    assert (receipt.blocks_found, receipt.blocks_total, receipt.tokens_by_tier) == (0, 0, {})
    assert (receipt.plan.decision, receipt.prefetch_ms) == (Decision.RECOMPUTE, 0.0)
    assert thawed.warning == f"{WHY} {window.token_count} tokens were computed again."
    assert not thawed.partial, "the window has no blocks that could be missing"
    evidence = receipt.evidence
    assert (evidence.verification, evidence.reason) == (Verification.SKIPPED, WHY)
    assert await cwm.registry.session_tokens("acme", "s2") == await cwm.registry.session_tokens("acme", "s1")


async def test_of_a_window_that_has_blocks_none_is_loaded_and_none_is_judged(cwm: Gateway) -> None:
    window = await cwm.window()
    salt = window.cache_salt
    cwm.kv_tier.damage(await cwm.key(window), 0, Copy.FORGED)
    close(cwm)
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert (thawed.receipt.tokens_restored, thawed.receipt.engine_changes) == (0, ())
    assert (thawed.partial, thawed.warning) == (
        True,
        f"{WHY} {window.token_count} tokens were computed again.",
    )
    assert (thawed.receipt.evidence.verification, thawed.receipt.evidence.reason) == (
        Verification.SKIPPED,
        WHY,
    )
    assert (await cwm.registry.window("acme", "w1")) == window, "a thaw never changes it"
    assert cwm.engine.requests[-1].cache_salt == salt
    await cwm.delete(ANN, "w1", force=True)
    assert await pins(cwm) == 0


async def test_a_window_that_was_frozen_meanwhile_thaws_where_kv_is_reused_again(cwm: Gateway) -> None:
    close(cwm)
    window = await cwm.window()
    close(cwm, why="")
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert (thawed.partial, thawed.warning, thawed.receipt.tokens_recomputed) == (
        False,
        None,
        window.token_count,
    )
    assert (await cwm.freeze(ANN, "s2", "w2")).window.block_count > 0


async def test_a_freeze_that_was_interrupted_is_finished_without_blocks_and_without_a_pin(
    cwm: Gateway,
) -> None:
    await cwm.session()
    window, ids, revision = await cwm.to_be_frozen("s1", "w1")
    session = await cwm.registry.session("acme", "s1")
    assert session is not None
    intent = await cwm.registry.begin_freeze(window, ids, revision, session.created_at)
    assert intent.operation is Operation.FREEZE
    close(cwm)
    finished = await cwm.freeze.resume(intent)
    assert finished is not None
    assert (finished.durability, finished.block_count, finished.pinned) == (Durability.DURABLE, 0, False)
    assert (finished.warning or "").startswith(WHY)
    assert await pins(cwm) == 0


async def test_a_patrol_leaves_windows_with_blocks_alone(cwm: Gateway) -> None:
    await cwm.window()
    cwm.kv_tier.copies.clear()
    close(cwm)
    assert await cwm.patrol(8, cwm.clock.now(), dry_run=False) == []
    window = await cwm.registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.DURABLE


async def test_what_was_recorded_before_goes_with_its_session_all_the_same(cwm: Gateway) -> None:
    close(cwm)
    await cwm.session()
    await cwm.end_session(ANN, "s1")
    assert await cwm.at_rest()


async def test_an_engine_that_reuses_kv_again_or_no_more_is_read_anew(cwm: Gateway) -> None:
    before = await cwm.directory.identity()
    cwm.engine.away = True
    await cwm.directory.look_at("", cwm.clock)
    cwm.engine.restart()
    cwm.engine.away, cwm.engine.no_reuse = False, WHY
    closed = await cwm.directory.identity()
    assert (before.no_reuse, closed.no_reuse, cwm.directory.no_reuse()) == ("", WHY, WHY)
    assert closed == before
    salts = {cwm.directory.salt("acme", "s1", each) for each in (before, closed)}
    assert len(salts) == 1
    cwm.engine.away = True
    await cwm.directory.look_at("", cwm.clock)
    cwm.engine.restart()
    cwm.engine.away, cwm.engine.no_reuse = False, ""
    assert ((await cwm.directory.identity()).no_reuse, cwm.directory.no_reuse()) == ("", "")


@pytest.mark.parametrize(("then", "now"), [("", WHY), (WHY, "")])
async def test_an_engine_whose_restart_nobody_saw_is_read_anew_at_its_first_answer(
    cwm: Gateway, then: str, now: str
) -> None:
    cwm.engine.no_reuse = then
    await cwm.window()
    cwm.engine.restart()
    cwm.engine.no_reuse = now
    with pytest.raises(EngineResponseError, match="whether it reuses KV"):
        await cwm.thaw(ANN, "w1", "s2")
    thawed = await cwm.thaw(ANN, "w1", "s2")
    assert bool(now) == (thawed.receipt.evidence.reason == WHY)


async def test_a_gateway_without_the_lmcache_of_the_engine_remembers_no_half_identity(cwm: Gateway) -> None:
    close(cwm)
    cwm.kv_tier.away = True
    assert (await cwm.directory.identity()).chunk_size is None
    cwm.kv_tier.away = False
    identity = await cwm.directory.identity()
    assert (identity.chunk_size, identity.block_size) == (cwm.kv_tier.chunk_size, cwm.kv_tier.chunk_size)
    asked = len(cwm.engine.requests)
    await cwm.directory.identity()
    assert len(cwm.engine.requests) == asked


async def test_a_switch_of_context_reuses_nothing(cwm: Gateway) -> None:
    compare = Compare(cwm.history, cwm.directory, cwm.thaw.planner)
    await cwm.session()
    both = TurnSource(session_id="s1"), TurnSource(session_id="s1")
    assert (await compare(ANN, *both)).reused_tokens > 0
    close(cwm)
    assert (await compare(ANN, *both)).reused_tokens == 0


@pytest.mark.parametrize("closed", [("two",), ("one",), ("one", "two")])
async def test_a_session_moves_without_blocks_and_the_receipt_says_why(
    fleet: Fleet, closed: tuple[str, ...]
) -> None:
    for name in closed:
        close(fleet.cwm, fleet.engines[name])
    context = await fleet.begins("s1")
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert (moved.tokens_restored, moved.tokens_recomputed) == (0, len(context))
    assert moved.blocks_found == 0
    assert (moved.evidence.verification, moved.evidence.reason) == (Verification.SKIPPED, WHY)
    assert await fleet.engine_of("s1") == "two"


async def test_a_canary_of_blocks_that_are_not_loaded_stops_no_move_from_a_lost_engine(fleet: Fleet) -> None:
    await fleet.begins("s1")
    key = await fleet.cwm.session_key("s1")
    for name in ("one", "two"):
        fleet.beside(name).damage(key, 0, Copy.FORGED)
    fleet.one.restart()
    # The canary comes from forged KV.
    await fleet.cwm.freeze(ANN, "s1", "w1", keep_session=True)
    close(fleet.cwm, fleet.two)
    await fleet.lose("one")
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert (moved.canary_of, moved.evidence.verification, moved.evidence.reason) == (
        None,
        Verification.SKIPPED,
        WHY,
    )


async def test_an_upgrade_to_an_engine_that_reuses_nothing_leaves_the_windows_as_they_are_and_says_why(
    fleet: Fleet,
) -> None:
    await fleet.begins("s1")
    await fleet.cwm.freeze(ANN, "s1", "w1")
    fleet.two.fingerprint, fleet.two.weights = "fp-2", "w-2"
    close(fleet.cwm, fleet.two)
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    (step,) = await fleet.cwm.renewal(8, dry_run=False)
    assert (step.outcome, step.detail) == (StepOutcome.FAILED, WHY)


async def test_a_watchdog_has_nothing_to_store_there(cwm: Gateway) -> None:
    await cwm.window()
    assert cwm.kv_tier.attached
    close(cwm)
    await cwm.directory.identity()
    asked = len(cwm.engine.requests)
    dog = Watchdog(cwm.engine, cwm.kv_tier, cwm.directory, cwm.meter, cwm.clock)
    await dog.look()
    assert (dog.fault(), len(cwm.engine.requests)) == (None, asked)


async def test_health_says_why(cwm: Gateway) -> None:
    close(cwm)
    await cwm.directory.identity()
    (found,) = (await _inspect(cwm, cwm.directory).health("kv_store")).components
    assert (found.status, found.message) == (
        Status.DEGRADED,
        f"{WHY} Windows keep tokens, thaws recompute.",
    )


async def test_of_several_engines_each_says_it_of_itself(fleet: Fleet) -> None:
    close(fleet.cwm, fleet.two)
    states = {each.name: each.no_reuse for each in await fleet.cwm.survey(OPERATOR)}
    assert states == {"one": "", "two": WHY, "other": ""}
    inspect = _inspect(fleet.cwm, fleet.cwm.directory)
    (two,) = (await inspect.health("engine:two")).components
    (one,) = (await inspect.health("engine:one")).components
    assert (two.message, one.message) == (f"OK; {WHY}", "OK")
    await fleet.begins("s1")
    (store,) = (await inspect.health("kv_store")).components
    assert WHY not in store.message


def _inspect(cwm: Gateway, directory: EngineDirectory) -> Inspect:
    return Inspect(
        registry=cwm.registry,
        engine=directory.engine,
        kv_tier=cwm.kv_tier,
        clock=cwm.clock,
        version="0",
        started=0.0,
        operators=OPERATORS,
        cache_fault=lambda: None,
        upstreams=list,
        reuse=Reuse(cwm.meter),
        audit_fault=lambda: None,
        directory=directory,
    )


async def test_the_doctor_finds_it_and_looks_for_no_blocks(cwm: Gateway) -> None:
    close(cwm)

    async def schema() -> tuple[bool, str]:
        return True, "reachable"

    async def no_clock() -> None:
        return None

    doctor = Doctor(cwm.registry, cwm.engine, cwm.kv_tier, Ticking(), schema, no_clock)
    examined: Examined = await doctor()
    found = {each.name: each for each in examined.findings}
    assert found["attached"].status is FindingStatus.WARN
    assert found["attached"].message.startswith(WHY)
    assert found["attached"].fix
    skipped = ("cached tokens", "block size", "coordinator", "directory", "round trip", "decode cache")
    assert {found[name].status for name in skipped} == {FindingStatus.SKIPPED}
    assert FindingStatus.FAULT not in {each.status for each in examined.findings}


async def test_a_clone_says_it_as_its_window_does(cwm: Gateway) -> None:
    close(cwm)
    window = await cwm.window()
    clone = await cwm.clone(ANN, "w1", "w2")
    assert (clone.block_count, clone.pinned, clone.warning) == (0, False, window.warning)
    assert await cwm.at_rest()
