"""A session goes to another engine with its KV, and proves it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.canary import Origin
from cwm.domain.engine import Tier
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import (
    EngineConnectionError,
    EngineIncompatibleError,
    EngineResponseError,
    InvalidParameterError,
    SessionMovingError,
    SessionNotActiveError,
    StorageWriteError,
    TurnInFlightError,
)
from cwm.domain.verdict import Verification
from tests.eventually import eventually
from tests.fakes.kv_tier import ALL, LOWER, Copy
from tests.services.fleet_of import Fleet, turns_of
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway


async def test_a_session_moves_with_its_kv_and_goes_on_where_it_is_now(fleet: Fleet) -> None:
    context = await fleet.begins("s1")
    chunk = fleet.cwm.kv_tier.chunk_size
    whole = (len(context) - 1) // chunk
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert (moved.source, moved.target, moved.token_count) == ("one", "two", len(context))
    assert (moved.blocks_found, moved.blocks_total) == (whole, whole)
    assert moved.tokens_restored == whole * chunk
    assert moved.tokens_recomputed == len(context) - whole * chunk
    assert moved.tokens_by_tier == {Tier.REDIS: whole * chunk}
    assert (moved.evidence.verification, moved.canary_of) == (Verification.EXACT, "source")
    assert await fleet.engine_of("s1") == "two"
    answer = await fleet.cwm.says("s1", " On.")
    assert answer.cached_tokens >= whole * chunk
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (1, 1)
    assert ("session_move", "success") in await fleet.cwm.events()


async def test_the_same_is_said_after_a_move_as_without_it(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.begins("s2")
    await fleet.cwm.move(ANN, "s1", "two")
    texts = [(await fleet.cwm.says(each, " On.")).text for each in ("s1", "s2")]
    assert texts[0] == texts[1]


async def test_what_the_shared_tiers_lost_is_stored_again_before_the_session_goes(fleet: Fleet) -> None:
    await fleet.begins("s1")
    key = await fleet.cwm.session_key("s1")
    for name in ("one", "two"):
        fleet.beside(name).lose(key, ALL, keep=1)
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert moved.blocks_found == moved.blocks_total
    assert moved.tokens_restored == moved.blocks_total * fleet.cwm.kv_tier.chunk_size


@pytest.mark.slow
async def test_a_session_stays_where_the_shared_tiers_take_nothing(fleet: Fleet) -> None:
    for name in ("one", "two"):
        fleet.beside(name).full.update(LOWER)
    await fleet.begins("s1")
    with pytest.raises(StorageWriteError):
        await fleet.cwm.move(ANN, "s1", "two")
    assert await fleet.engine_of("s1") == "one"
    assert (await fleet.session()).moving_until is None
    await fleet.cwm.says("s1", " On.")
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (2, 0)


async def test_a_session_stays_if_its_kv_is_another_there(fleet: Fleet) -> None:
    await fleet.begins("s1")
    key = await fleet.cwm.session_key("s1")
    fleet.beside("two").damage(key, 0, Copy.FORGED)
    with pytest.raises(EngineResponseError, match="is wrong on engine 'two': the session stays") as refused:
        await fleet.cwm.move(ANN, "s1", "two")
    assert refused.value.context["deviation"] > 1
    session = await fleet.session()
    assert (session.engine, session.moving_until, session.salt_scope) == ("one", None, "tenant:acme")
    assert ("session_move", "CWM-5002") in await fleet.cwm.events()
    assert counted(fleet.cwm, "cwm_verifications_total") == {"mismatch": 1}
    assert (await fleet.cwm.says("s1", " On.")).cached_tokens > 0


def counted(cwm: Gateway, name: str) -> dict[str, float]:
    samples = cwm.meter.samples(buckets=False)
    return {next(iter(s.labels.values())): s.value for s in samples if s.name == name and s.value}


async def test_where_the_target_has_no_room_for_a_control_the_session_moves_and_is_computed_there(
    fleet: Fleet,
) -> None:
    """Right or wrong: that could not be told, and nothing is deleted."""
    context = await fleet.begins("s1")
    await fleet.begins("s2")
    key = await fleet.cwm.session_key("s1")
    expected = await fleet.cwm.says("s2", " On.")
    fleet.beside("two").damage(key, 0, Copy.FORGED)
    held = {name: dict(copies) for name, copies in fleet.beside("two").copies.items()}
    fleet.two.room = len(context)
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert moved.evidence.verification is Verification.UNDECIDED
    assert "no room" in moved.evidence.reason
    assert (moved.tokens_restored, moved.tokens_recomputed, moved.tokens_by_tier) == (0, len(context), {})
    session = await fleet.session()
    assert (session.engine, session.salt_scope) == ("two", "session:s1")
    assert await fleet.cwm.registry.current_scope("acme", "tenant:acme") == "tenant:acme"
    assert all(fleet.beside("two").copies[name].items() >= copies.items() for name, copies in held.items())
    answer = await fleet.cwm.says("s1", " On.")
    assert (answer.text, answer.cached_tokens >= len(context) - 32) == (expected.text, True)
    assert turns_of(fleet.two) == 1
    assert counted(fleet.cwm, "cwm_events_total")["move_undecided"] == 1


async def test_a_session_that_goes_on_under_a_salt_of_its_own_survives_the_loss_of_its_engine(
    fleet: Fleet,
) -> None:
    context = await fleet.begins("s1")
    fleet.beside("two").damage(await fleet.cwm.session_key("s1"), 0, Copy.FORGED)
    fleet.two.room = len(context)
    await fleet.cwm.move(ANN, "s1", "two")
    assert (await fleet.session()).salt_scope == "session:s1"
    await fleet.lose("two")
    moved = await fleet.cwm.move(ANN, "s1", "one")
    assert (moved.source_answered, await fleet.engine_of("s1")) == (False, "one")
    assert (await fleet.cwm.says("s1", " On.")).prompt_tokens > len(context)


async def test_right_kv_of_engines_that_differ_by_their_noise_moves(fleet: Fleet) -> None:
    await fleet.begins("s1")
    for engine in (fleet.one, fleet.two):
        engine.noise = 0.2
    for target in ("two", "one", "two"):
        moved = await fleet.cwm.move(ANN, "s1", target)
        assert moved.evidence.verification in {Verification.EXACT, Verification.WITHIN_NOISE}
        assert moved.tokens_restored > 0


async def test_what_a_move_proved_is_inherited_by_a_freeze_and_what_it_did_not_prove_is_not(
    fleet: Fleet,
) -> None:
    """The look at a source that itself rests on loads proves that both have the same, not that it is right."""
    await fleet.begins("s1")
    await fleet.begins("s2", "Another context of its own, and it is as long as some blocks of KV are.")
    await fleet.cwm.move(ANN, "s1", "two")
    await fleet.cwm.says("s1", " On.")
    fleet.one.restart()
    await fleet.cwm.says("s2", " On.")
    await fleet.cwm.move(ANN, "s2", "two")
    for session_id, origin in (("s1", Origin.INHERITED), ("s2", Origin.UNPROVEN)):
        window = (await fleet.cwm.freeze(ANN, session_id, f"of-{session_id}")).window
        canary = await fleet.cwm.registry.canary("acme", window.snapshot_id, window.cache_salt)
        assert canary is not None
        assert canary.origin is origin, session_id


async def test_a_session_of_a_lost_engine_moves_with_what_the_tiers_have_and_says_so(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.lose("one")
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert not moved.source_answered
    assert (moved.canary_of, moved.evidence.verification) == (None, Verification.SKIPPED)
    assert moved.evidence.reason == "the source did not answer"
    assert moved.blocks_found == moved.blocks_total > 0
    assert await fleet.engine_of("s1") == "two"


async def test_of_a_lost_engine_the_canary_of_a_window_proves_the_kv(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.cwm.freeze(ANN, "s1", "w1", keep_session=True)
    await fleet.lose("one")
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert (moved.canary_of, moved.evidence.verification) == ("window", Verification.EXACT)


async def test_what_a_lost_engine_took_along_is_computed_again(fleet: Fleet) -> None:
    context = await fleet.begins("s1")
    key = await fleet.cwm.session_key("s1")
    await fleet.lose("one")
    fleet.beside("two").lose(key, ALL, keep=1)
    moved = await fleet.cwm.move(ANN, "s1", "two")
    chunk = fleet.cwm.kv_tier.chunk_size
    assert (moved.tokens_restored, moved.tokens_recomputed) == (chunk, len(context) - chunk)


async def test_an_engine_of_another_model_or_deployment_takes_no_session(fleet: Fleet) -> None:
    await fleet.begins("s1")
    with pytest.raises(EngineIncompatibleError, match="does not serve 'tiny'"):
        await fleet.cwm.move(ANN, "s1", "other")
    fleet.two.weights = "w-2"
    fleet.cwm.directory.forget()
    with pytest.raises(EngineIncompatibleError) as refused:
        await fleet.cwm.move(ANN, "s1", "two")
    assert refused.value.context["differences"] == ["weights_digest was w-1, is w-2"]
    await fleet.lose("one")
    with pytest.raises(EngineIncompatibleError):
        await fleet.cwm.move(ANN, "s1", "two")
    assert await fleet.engine_of("s1") == "one"


async def test_a_router_takes_no_session(fleet: Fleet) -> None:
    await fleet.begins("s1")
    fleet.cwm.directory.rules = {"two": EngineRules(is_router=True)}
    with pytest.raises(EngineIncompatibleError, match="a router chooses") as refused:
        await fleet.cwm.move(ANN, "s1", "two")
    assert refused.value.code == "CWM-3011"
    assert (await fleet.engine_of("s1"), turns_of(fleet.two)) == ("one", 0)


async def test_an_unknown_engine_and_one_that_is_away_take_no_session(fleet: Fleet) -> None:
    await fleet.begins("s1")
    with pytest.raises(InvalidParameterError, match="no engine 'three'") as unknown:
        await fleet.cwm.move(ANN, "s1", "three")
    assert unknown.value.context["engines"] == ["one", "two", "other"]
    await fleet.lose("two")
    with pytest.raises(EngineConnectionError):
        await fleet.cwm.move(ANN, "s1", "two")


async def test_a_frozen_session_does_not_move(fleet: Fleet) -> None:
    await fleet.cwm.window("w1", "s1")
    with pytest.raises(SessionNotActiveError):
        await fleet.cwm.move(ANN, "s1", "two")


async def test_a_session_that_is_there_already_stays(fleet: Fleet) -> None:
    await fleet.begins("s1")
    before = len(fleet.one.requests)
    moved = await fleet.cwm.move(ANN, "s1", "one")
    assert (moved.source, moved.target) == ("one", "one")
    assert len(fleet.one.requests) == before


async def test_a_session_without_turns_begins_on_the_engine_it_moves_to(fleet: Fleet) -> None:
    await fleet.cwm.open_session(ANN, "s1")
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert (moved.source, moved.target, moved.token_count) == (None, "two", 0)
    await fleet.cwm.says("s1", "Hello.")
    assert turns_of(fleet.two) == 1


async def test_a_session_with_a_turn_in_flight_moves_when_the_turn_has_ended(fleet: Fleet) -> None:
    await fleet.begins("s1")
    fleet.one.gate = asyncio.Event()
    fleet.one.asked.clear()
    turn = asyncio.create_task(fleet.cwm.says("s1", " On."))
    await fleet.one.asked.wait()
    with pytest.raises(TurnInFlightError):
        await fleet.cwm.move(ANN, "s1", "two")
    fleet.one.gate.set()
    await turn
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert moved.token_count == len(await fleet.cwm.registry.session_tokens("acme", "s1"))


async def test_a_turn_that_is_asked_during_a_move_waits_and_goes_on_at_the_new_engine(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.cwm.directory.identity("tiny", "two")
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    move = asyncio.create_task(fleet.cwm.move(ANN, "s1", "two"))
    await fleet.two.asked.wait()
    turn = asyncio.create_task(fleet.cwm.says("s1", " On."))
    fleet.two.gate.set()
    await move
    await turn
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (1, 1)


async def test_a_turn_that_has_waited_for_long_goes_on_at_the_old_engine_and_the_session_stays(
    fleet: Fleet,
) -> None:
    await fleet.begins("s1")
    generate = fleet.cwm.generate
    generate.place = replace(generate.place, patience_seconds=0)
    await fleet.cwm.directory.identity("tiny", "two")
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    move = asyncio.create_task(fleet.cwm.move(ANN, "s1", "two"))
    await fleet.two.asked.wait()
    await fleet.cwm.says("s1", " On.")
    fleet.two.gate.set()
    with pytest.raises(TurnInFlightError, match="stays where it is"):
        await move
    assert await fleet.engine_of("s1") == "one"
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (2, 0)


async def test_two_gateways_never_move_one_session_at_once(fleet: Fleet, sqlite: Database) -> None:
    await fleet.begins("s1")
    other = fleet.another_gateway(sqlite)
    for gateway in (fleet.cwm, other):
        await gateway.directory.identity("tiny", "two")
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    move = asyncio.create_task(fleet.cwm.move(ANN, "s1", "two"))
    await fleet.two.asked.wait()
    with pytest.raises(SessionMovingError) as refused:
        await other.move(ANN, "s1", "two")
    assert refused.value.retryable
    fleet.two.gate.set()
    await move
    await other.move(ANN, "s1", "one")
    assert await fleet.engine_of("s1") == "one"


async def test_more_moves_than_may_run_at_once_wait(fleet: Fleet) -> None:
    await fleet.cwm.directory.identity("tiny", "two")
    for session_id in ("s1", "s2", "s3"):
        await fleet.begins(session_id, f"{session_id} is a context of its own, as long as some blocks are.")
    fleet.two.gate = asyncio.Event()
    before = len(fleet.two.requests)
    moves = [asyncio.create_task(fleet.cwm.move(ANN, each, "two")) for each in ("s1", "s2", "s3")]
    await eventually(lambda: len(fleet.two.requests) == before + 2)
    held = [(await fleet.session(each)).moving_until is not None for each in ("s1", "s2", "s3")]
    assert held == [True, True, False]
    fleet.two.gate.set()
    assert {(await move).target for move in moves} == {"two"}


async def test_a_move_goes_on_after_its_caller_has_left(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.cwm.directory.identity("tiny", "two")
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    move = asyncio.create_task(fleet.cwm.move(ANN, "s1", "two"))
    await fleet.two.asked.wait()
    move.cancel()
    fleet.two.gate.set()
    await fleet.cwm.move.settle()
    assert await fleet.engine_of("s1") == "two"


@pytest.mark.parametrize("dies", ["one", "two"])
async def test_an_engine_that_dies_in_a_move_leaves_the_session_where_it_is(fleet: Fleet, dies: str) -> None:
    await fleet.begins("s1")
    await fleet.cwm.directory.identity("tiny", "two")
    engine = fleet.engines[dies]
    engine.gate = asyncio.Event()
    engine.asked.clear()
    move = asyncio.create_task(fleet.cwm.move(ANN, "s1", "two"))
    await engine.asked.wait()
    engine.away = True
    engine.gate.set()
    with pytest.raises(EngineConnectionError):
        await move
    session = await fleet.session()
    assert (session.engine, session.moving_until) == ("one", None)
    engine.away = False
    assert (await fleet.cwm.move(ANN, "s1", "two")).evidence.verification is Verification.EXACT


async def test_a_session_from_before_there_were_several_engines_moves_with_what_the_tiers_have(
    fleet: Fleet, sqlite: Database
) -> None:
    alone = fleet.another_gateway(sqlite, served=fleet.one)
    await alone.session("s1")
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert (moved.source, moved.evidence.reason) == (None, "it is not known which engine served the session")
    assert moved.blocks_found == moved.blocks_total > 0
