"""An engine that is drained gets no new sessions, and those that it has go elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.access import EVERY
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import InvalidParameterError, SecurityError, StorageReadError
from cwm.domain.principal import Principal
from cwm.domain.visibility import PRIVATE
from cwm.services.turns.sending.generate import TurnInput
from tests.fakes.kv_tier import LOWER
from tests.services.fleet_of import Fleet, turns_of
from tests.services.replicas_of import ANN, OPERATOR

pytestmark = pytest.mark.slow

SESSIONS = ("s1", "s2", "s3", "s4", "s5")


async def full(fleet: Fleet) -> None:
    """Five sessions on the first engine."""
    for session_id in SESSIONS:
        await fleet.begins(session_id, f"{session_id} is a context of its own, of some blocks at least.")


async def engines_of(fleet: Fleet, *sessions: str) -> set[str | None]:
    return {await fleet.engine_of(each) for each in sessions}


async def test_all_sessions_move_and_each_is_counted(fleet: Fleet) -> None:
    await full(fleet)
    progress: list[tuple[int, int]] = []

    async def on_moved(moved: int, of: int) -> None:
        progress.append((moved, of))

    drained = await fleet.cwm.drain(OPERATOR, "one", on_moved=on_moved)
    assert (drained.moved, drained.stayed, drained.is_up) == (5, (), True)
    assert progress[-1] == (5, 5)
    assert await engines_of(fleet, *SESSIONS) == {"two"}
    whole = fleet.cwm.kv_tier.chunk_size
    for session_id in SESSIONS:
        assert (await fleet.cwm.says(session_id, " On.")).cached_tokens >= whole
    assert ("engine_drain", "success") in await fleet.cwm.events()


async def test_an_engine_that_is_drained_gets_no_new_sessions_until_that_is_undone(
    fleet: Fleet, sqlite: Database
) -> None:
    await fleet.cwm.window("w1")
    drained = await fleet.cwm.drain(OPERATOR, "one")
    assert (drained.moved, drained.stayed) == (0, ())
    await fleet.cwm.session("s2")
    assert (await fleet.cwm.thaw(ANN, "w1")).session.engine == "two"
    with pytest.raises(InvalidParameterError, match="being drained"):
        await fleet.cwm.move(ANN, "s2", "one")
    other = fleet.another_gateway(sqlite)
    await other.open_session(ANN, "s3")
    await other.says("s3", "Hello.")
    assert await engines_of(fleet, "s2", "s3") == {"two"}
    undone = await fleet.cwm.drain.undo(OPERATOR, "one")
    assert undone.since is None
    await fleet.cwm.drain(OPERATOR, "two")
    await fleet.cwm.session("s4")
    assert await fleet.engine_of("s4") == "one"


async def test_a_turn_of_a_session_that_was_not_moved_yet_goes_on_where_it_is(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.cwm.registry.drain_engine("one", fleet.cwm.clock.now())
    await fleet.cwm.says("s1", " On.")
    assert turns_of(fleet.one) == 2


async def test_new_sessions_are_taken_by_engines_that_are_drained_if_there_is_no_other(fleet: Fleet) -> None:
    for name in ("one", "two"):
        await fleet.cwm.registry.drain_engine(name, fleet.cwm.clock.now())
    await fleet.cwm.session("s1")
    assert await fleet.engine_of("s1") in {"one", "two"}


async def test_sessions_that_cannot_move_are_named_with_why_and_move_when_they_can(fleet: Fleet) -> None:
    await full(fleet)
    await fleet.lose("two")
    drained = await fleet.cwm.drain(OPERATOR, "one")
    assert drained.moved == 0
    assert {(each.tenant, each.session_id) for each in drained.stayed} == {
        ("acme", each) for each in SESSIONS
    }
    assert {each.error.code for each in drained.stayed} == {"CWM-3011"}
    fleet.two.away = False
    for _ in range(2):
        await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    again = await fleet.cwm.drain(OPERATOR, "one")
    assert (again.moved, again.stayed) == (5, ())
    assert again.since == drained.since


async def test_a_session_with_a_long_turn_stays_until_the_drain_is_repeated(fleet: Fleet) -> None:
    await full(fleet)
    fleet.one.gate = asyncio.Event()
    fleet.one.asked.clear()
    turn = asyncio.create_task(fleet.cwm.says("s1", " On."))
    await fleet.one.asked.wait()
    drained = await fleet.cwm.drain(OPERATOR, "one", timeout_seconds=0.3)
    assert "s1" in {each.session_id for each in drained.stayed}
    assert drained.is_up
    fleet.one.gate.set()
    await turn
    assert not (await fleet.cwm.drain(OPERATOR, "one")).stayed
    assert await engines_of(fleet, *SESSIONS) == {"two"}


async def test_an_engine_that_is_away_is_drained_from_the_shared_tiers_and_that_is_said(fleet: Fleet) -> None:
    await full(fleet)
    await fleet.lose("one")
    drained = await fleet.cwm.drain(OPERATOR, "one")
    assert (drained.moved, drained.stayed, drained.is_up) == (5, (), False)


async def test_an_engine_whose_kv_cannot_be_stored_keeps_its_sessions(fleet: Fleet) -> None:
    for name in ("one", "two"):
        fleet.beside(name).full.update(LOWER)
    await fleet.begins("s1")
    drained = await fleet.cwm.drain(OPERATOR, "one", timeout_seconds=0.5)
    assert [each.session_id for each in drained.stayed] == ["s1"]
    await fleet.cwm.move.settle()
    assert await fleet.engine_of("s1") == "one"
    await fleet.cwm.says("s1", " On.")


async def test_sessions_of_everybody_move_and_each_tenants_log_says_who_did_it(fleet: Fleet) -> None:
    eve = Principal("elsewhere", "eve")
    await fleet.cwm.open_session(eve, "s1", visibility=PRIVATE)
    await fleet.cwm.generate(eve, "s1", TurnInput(text="Hello there, engine.", max_tokens=8))
    drained = await fleet.cwm.drain(OPERATOR, "one")
    assert (drained.moved, drained.stayed) == (1, ())
    (event,) = [each for each in await fleet.cwm.audit.events("elsewhere", 9) if each.event == "session_move"]
    assert (event.subject, event.outcome) == ("operator:acme:ann", "success")
    assert {name: event.details[name] for name in ("actor", "actor_tenant", "owner", "source", "target")} == {
        "actor": "ann",
        "actor_tenant": "acme",
        "owner": "eve",
        "source": "one",
        "target": "two",
    }
    (drain,) = [each for each in await fleet.cwm.audit.events("acme", 9) if each.event == "engine_drain"]
    assert (drain.subject, drain.details["of_tenants"]) == ("ann", {"elsewhere": 1})


async def test_an_admin_drains_what_serves_the_own_tenant_alone_and_moves_no_session_of_others(
    fleet: Fleet,
) -> None:
    eve = Principal("elsewhere", "eve", EVERY)
    await fleet.begins("s1")
    await fleet.cwm.registry.settle_session(await fleet.session("s1"), "two", "one")
    # From now on: the session of the other tenant is left there.
    fleet.cwm.directory.rules = {"two": EngineRules(tenants=frozenset({"elsewhere"}))}
    session = await fleet.cwm.open_session(eve, "e1")
    await fleet.cwm.registry.settle_session(session, "two", None)
    await fleet.cwm.generate(eve, "e1", TurnInput(text="Hello there, engine.", max_tokens=8))
    drained = await fleet.cwm.drain(eve, "two")
    assert (drained.moved, drained.stayed) == (1, ())
    moved = await fleet.cwm.registry.session("elsewhere", "e1")
    assert (await fleet.engine_of("s1"), moved and moved.engine) == ("two", "one")
    assert (await fleet.cwm.drain.undo(eve, "two")).since is None


@pytest.mark.parametrize("tenants", [None, {"elsewhere", "acme"}, {"elsewhere", "third"}])
async def test_an_admin_does_not_drain_an_engine_under_other_tenants(
    fleet: Fleet, tenants: set[str] | None
) -> None:
    eve = Principal("elsewhere", "eve", EVERY)
    fleet.cwm.directory.rules = {"one": EngineRules(tenants=None if tenants is None else frozenset(tenants))}
    for ask in (fleet.cwm.drain, fleet.cwm.drain.undo):
        with pytest.raises(SecurityError, match="serves other tenants, too"):
            await ask(eve, "one")
    assert await fleet.cwm.registry.drained_engines() == {}
    events = [(each.event, each.outcome) for each in await fleet.cwm.audit.events("elsewhere", 9)]
    assert events == [("engine_undrain", "CWM-9002"), ("engine_drain", "CWM-9002")]


async def test_an_engine_of_other_tenants_is_answered_like_one_that_there_is_not(fleet: Fleet) -> None:
    eve = Principal("elsewhere", "eve", EVERY)
    fleet.cwm.directory.rules = {"one": EngineRules(tenants=frozenset({"acme"}))}
    await fleet.cwm.open_session(eve, "s1")
    for ask in (fleet.cwm.drain, fleet.cwm.drain.undo, lambda who, name: fleet.cwm.move(who, "s1", name)):
        refusals = []
        for name in ("one", "three"):
            with pytest.raises(InvalidParameterError) as refused:
                await ask(eve, name)
            refusals.append(str(refused.value.as_dict()).replace(name, "NAME"))
        assert refusals[0] == refusals[1]
        assert "one" not in refusals[0]
    assert [each.name for each in await fleet.cwm.survey(eve)] == ["two", "other"]


async def test_an_admin_of_another_tenant_sees_no_load_and_no_sessions_of_others(fleet: Fleet) -> None:
    eve = Principal("elsewhere", "eve", EVERY)
    await full(fleet)
    await fleet.cwm.open_session(eve, "s1")
    await fleet.cwm.generate(eve, "s1", TurnInput(text="Hello there, engine.", max_tokens=8))
    seen = await fleet.cwm.survey(eve)
    assert (sum(each.sessions for each in seen), {each.running for each in seen}) == (1, {None})
    assert sum(each.sessions for each in await fleet.cwm.survey(OPERATOR)) == len(SESSIONS) + 1


async def test_an_unknown_engine_is_not_drained(fleet: Fleet) -> None:
    for ask in (fleet.cwm.drain, fleet.cwm.drain.undo):
        with pytest.raises(InvalidParameterError) as unknown:
            await ask(ANN, "three")
        assert unknown.value.context["engines"] == ["one", "two", "other"]
    assert await fleet.cwm.registry.drained_engines() == {}


async def test_the_drain_of_an_engine_that_is_off_the_list_is_undone(fleet: Fleet) -> None:
    await fleet.cwm.registry.drain_engine("three", fleet.cwm.clock.now())
    assert (await fleet.cwm.drain.undo(OPERATOR, "three")).since is None
    assert await fleet.cwm.registry.drained_engines() == {}


async def test_all_sessions_that_a_drain_has_no_time_for_are_counted(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.begins("s2")
    for number in range(3, 205):
        session = await fleet.cwm.open_session(ANN, f"s{number}")
        await fleet.cwm.registry.settle_session(session, "one", None)
    fleet.one.gate = asyncio.Event()
    drained = await fleet.cwm.drain(OPERATOR, "one", timeout_seconds=0.3)
    assert len(drained.stayed) == 204
    fleet.one.gate.set()
    await fleet.cwm.move.settle()


async def test_a_drain_that_fails_leaves_nothing_running(fleet: Fleet) -> None:
    await full(fleet)
    failures = iter([StorageReadError("The registry does not answer.")])

    async def on_moved(_moved: int, _of: int) -> None:
        for failure in failures:
            raise failure

    with pytest.raises(StorageReadError):
        await fleet.cwm.drain(OPERATOR, "one", on_moved=on_moved)
    await fleet.cwm.move.settle()
    assert not [task for task in asyncio.all_tasks() if "Drain" in repr(task.get_coro())]


async def test_an_engine_that_hangs_holds_up_no_survey(fleet: Fleet) -> None:
    await fleet.begins("s1")
    fleet.two.gate = asyncio.Event()
    fleet.cwm.directory.forget("two")
    survey = replace(fleet.cwm.survey, patience_seconds=0.1)
    one, two, _ = await survey(OPERATOR)
    assert (one.deployments, two.deployments) == ({"tiny": "fp-1"}, {})


async def test_a_survey_says_what_each_engine_is_and_does(fleet: Fleet) -> None:
    await full(fleet)
    await fleet.cwm.registry.drain_engine("two", fleet.cwm.clock.now())
    await fleet.lose("other")
    one, two, other = await fleet.cwm.survey(OPERATOR)
    assert (one.name, one.is_up, one.sessions, one.deployments) == ("one", True, 5, {"tiny": "fp-1"})
    assert (two.sessions, two.draining_since is not None) == (0, True)
    assert (other.is_up, other.deployments, other.reason) == (False, {}, "vLLM does not answer.")
    assert other.since is not None


async def test_a_session_that_went_elsewhere_by_itself_is_not_left_behind(fleet: Fleet) -> None:
    for name in ("one", "two"):
        fleet.beside(name).full.update(LOWER)
    await fleet.begins("s1")

    async def on_moved(moved: int, _of: int) -> None:
        assert moved == 0
        await fleet.cwm.registry.settle_session(await fleet.session(), "two", "one")

    drained = await fleet.cwm.drain(OPERATOR, "one", on_moved=on_moved)
    assert (drained.moved, drained.stayed) == (0, ())
    assert ("session_move", "CWM-4001") in await fleet.cwm.events()
