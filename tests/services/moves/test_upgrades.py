"""A model goes to another deployment: new sessions at once, old ones when their engine is gone, its windows in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.domain.canary import Origin
from cwm.domain.engine_rules import EngineRules
from cwm.domain.errors import (
    CwmError,
    EngineConnectionError,
    EngineIncompatibleError,
    EngineResponseError,
    EngineTimeoutError,
    InvalidParameterError,
    WindowIncompatibleError,
)
from cwm.domain.principal import Principal
from cwm.domain.upgrade import WindowCounts
from cwm.domain.upkeep import StepOutcome
from cwm.domain.verdict import Verification
from cwm.domain.window import Durability, Retention, Window
from cwm.ports.engine import Completion, Generation
from cwm.services.engines.placement import Place
from cwm.services.turns.sending.generate import TurnInput
from tests.eventually import eventually
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import LOWER, FakeKvTier
from tests.services.fleet_of import Fleet
from tests.services.replicas_of import ANN, OPERATOR

pytestmark = pytest.mark.slow


@pytest.fixture
async def fleet(fleet: Fleet) -> Fleet:
    """The second engine is of another deployment."""
    fleet.two.fingerprint, fleet.two.weights = "fp-2", "w-2"
    return fleet


async def add(fleet: Fleet, name: str, **more: Any) -> FakeEngine:
    """Another engine, of the first one's deployment unless ``more`` says otherwise."""
    server, first = FakeKvTier(), fleet.beside("one")
    servers = {"one": first, **first.servers, name: server}
    for each in servers.values():
        each.servers = {key: other for key, other in servers.items() if other is not each}
    added = FakeEngine(server, **more)
    served = cast("VllmFleet", fleet.cwm.directory.engine)
    served.configure({**served.by_name, name: cast("Any", added)})
    await fleet.cwm.directory.look_at(name, fleet.cwm.clock)
    return added


async def window(fleet: Fleet, name: str, tenant: str = "acme") -> Window:
    found = await fleet.cwm.registry.window(tenant, name)
    assert found is not None
    return found


async def frozen(fleet: Fleet, name: str, session_id: str) -> Window:
    """A window of a session on the old deployment."""
    await fleet.begins(
        session_id, f"{session_id} has a context of its own, which takes some blocks at least."
    )
    return (await fleet.cwm.freeze(ANN, session_id, name)).window


async def until_done(fleet: Fleet) -> list[StepOutcome]:
    """The outcomes of all that the leader does in the background."""
    outcomes: list[StepOutcome] = []
    while steps := await fleet.cwm.renewal(2, dry_run=False):
        outcomes += [step.outcome for step in steps]
    return outcomes


async def test_new_sessions_go_to_the_deployment_that_an_operator_names(fleet: Fleet) -> None:
    begun = await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert (begun.deployment, begun.engines) == ("fp-2", {"one": "fp-1", "two": "fp-2"})
    for name in ("s1", "s2", "s3"):
        await fleet.cwm.session(name)
    assert {await fleet.engine_of(name) for name in ("s1", "s2", "s3")} == {"two"}
    assert ("engine_upgrade", "success") in await fleet.cwm.events()


async def test_the_deployment_itself_names_it_too_and_the_last_word_counts(fleet: Fleet) -> None:
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    back = await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "fp-1")
    assert back.deployment == "fp-1"
    await fleet.cwm.session("s1")
    assert await fleet.engine_of("s1") == "one"


async def test_every_gateway_sees_it_and_it_lasts_until_it_is_undone(fleet: Fleet, sqlite: Database) -> None:
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    other = fleet.another_gateway(sqlite)
    first = await other.upgrades.show(OPERATOR, "tiny")
    assert first.deployment == "fp-2"
    again = await other.upgrades.begin(OPERATOR, "tiny", "two")
    assert again.since == first.since
    for name in ("s1", "s2"):
        await other.session(name)
    assert {await fleet.engine_of(name) for name in ("s1", "s2")} == {"two"}
    assert (await other.upgrades.end(OPERATOR, "tiny")).deployment is None
    for name in ("s3", "s4"):
        await fleet.cwm.session(name)
    assert {await fleet.engine_of(name) for name in ("s3", "s4")} == {"one", "two"}


async def test_without_an_engine_of_the_new_deployment_new_sessions_go_to_the_old_one(fleet: Fleet) -> None:
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await fleet.lose("two")
    await fleet.cwm.session("s1")
    assert await fleet.engine_of("s1") == "one"


async def test_an_engine_of_the_new_deployment_that_is_full_gets_no_more(fleet: Fleet) -> None:
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    fleet.cwm.directory.rules = {"two": EngineRules(max_running=1)}
    fleet.two.busy = (1, 0)
    await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    await fleet.cwm.session("s1")
    assert await fleet.engine_of("s1") == "one"


@pytest.mark.parametrize("state", ["full", "drained"])
async def test_a_session_that_has_to_leave_its_deployment_goes_to_the_upgrades_and_no_third_one(
    fleet: Fleet, state: str
) -> None:
    cwm = fleet.cwm
    await add(fleet, "three", fingerprint="fp-3", weights="w-3")
    await add(fleet, "four")
    await fleet.begins("s1")
    await cwm.upgrades.begin(OPERATOR, "tiny", "two")
    fleet.two.busy = (3, 0)
    await cwm.directory.look_at("two", cwm.clock)
    if state == "full":
        cwm.directory.rules = {"four": EngineRules(max_running=0)}
    else:
        await cwm.registry.drain_engine("four", cwm.clock.now())
    await fleet.lose("one")
    await cwm.says("s1", " On.")
    assert await fleet.engine_of("s1") == "two", "although it has more to do"


async def test_an_engine_that_does_not_say_who_it_is_delays_new_sessions_once_for_a_moment(
    fleet: Fleet,
) -> None:
    cwm = fleet.cwm
    three = await add(fleet, "three")
    await cwm.upgrades.begin(OPERATOR, "tiny", "two")
    cwm.directory.forget("three")
    three.gate = asyncio.Event()
    three.asked.clear()
    place, loop = Place(cwm.registry, cwm.directory, cwm.clock), asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(20):
        with ExitStack() as turn:
            assert (await place.anywhere("tiny", "acme", turn)).engine == "two"
    assert loop.time() - begun < 2.5, "each would have waited for five seconds"
    assert len(three.requests) == 2, "when it came, and once since"
    three.gate.set()
    await eventually(lambda: "three" in cwm.directory.known("tiny", ["three"]))


async def test_another_gateway_that_knows_no_engine_yet_sends_its_first_session_to_the_new_deployment(
    fleet: Fleet, sqlite: Database
) -> None:
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    other = fleet.another_gateway(sqlite)
    await other.session("s1")
    assert await fleet.engine_of("s1") == "two"


@pytest.mark.parametrize("to", ["three", "other", "fp-9", ""])
async def test_what_serves_the_model_nowhere_is_refused_with_what_does(fleet: Fleet, to: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        await fleet.cwm.upgrades.begin(OPERATOR, "tiny", to)
    assert refused.value.context["deployments"] == {"one": "fp-1", "two": "fp-2"}
    with pytest.raises(InvalidParameterError, match="does not serve the model"):
        await fleet.cwm.upgrades.show(OPERATOR, "unheard-of")


async def test_nothing_is_upgraded_to_what_a_router_chooses(fleet: Fleet) -> None:
    fleet.cwm.directory.rules = {"two": EngineRules(is_router=True)}
    with pytest.raises(EngineIncompatibleError):
        await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")


async def test_sessions_on_the_old_deployment_stay_until_it_is_gone_and_then_that_is_said(
    fleet: Fleet,
) -> None:
    await fleet.begins("s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert (await fleet.cwm.says("s1", " On.")).cached_tokens >= fleet.cwm.kv_tier.chunk_size
    assert await fleet.engine_of("s1") == "one"
    await fleet.lose("one")
    assert (await fleet.cwm.says("s1", " On.")).cached_tokens == 0
    assert await fleet.engine_of("s1") == "two"
    turn = await fleet.cwm.registry.current_turn("acme", "s1")
    assert turn is not None
    assert turn.missed == "another_engine"


async def test_a_drain_of_the_old_deployment_leaves_none_behind_and_says_what_is_computed(
    fleet: Fleet,
) -> None:
    await fleet.begins("s1")
    await fleet.begins("s2", "Another context, of some blocks at least, as they are counted here.")
    assert {each.error.code for each in (await fleet.cwm.drain(OPERATOR, "one")).stayed} == {"CWM-3011"}
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    drained = await fleet.cwm.drain(OPERATOR, "one")
    assert (drained.moved, drained.to_compute, drained.stayed) == (0, 2, ())
    assert {await fleet.engine_of(each) for each in ("s1", "s2")} == {"two"}
    assert (await fleet.cwm.says("s1", " On.")).cached_tokens == 0
    turn = await fleet.cwm.registry.current_turn("acme", "s1")
    assert turn is not None
    assert turn.missed == "another_engine"


async def test_a_drain_lets_no_session_go_that_an_engine_of_its_deployment_takes_a_moment_later(
    fleet: Fleet,
) -> None:
    three = await add(fleet, "three")
    await fleet.begins("s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    # The last to be asked.
    fleet.two.busy = (3, 0)
    await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    three.away = True
    tries = 0

    async def on_moved(_moved: int, _of: int) -> None:
        nonlocal tries
        tries += 1
        three.away = False
        await fleet.cwm.directory.look_at("three", fleet.cwm.clock)

    drained = await fleet.cwm.drain(OPERATOR, "one", on_moved=on_moved)
    assert (drained.moved, drained.to_compute, drained.stayed, tries) == (1, 0, (), 2)
    assert await fleet.engine_of("s1") == "three"


async def test_windows_are_frozen_again_and_thaw_on_the_new_deployment_from_their_kv(fleet: Fleet) -> None:
    before = [await frozen(fleet, f"w{number}", f"s{number}") for number in range(5)]
    begun = await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert begun.windows == WindowCounts(done=0, left=5)
    assert await until_done(fleet) == [StepOutcome.DONE] * 5
    assert (await fleet.cwm.upgrades.show(OPERATOR, "tiny")).windows == WindowCounts(done=5, left=0)
    await fleet.lose("one")
    for old in before:
        new = await window(fleet, old.name)
        assert (new.snapshot_id, new.token_count, new.created_at) == (
            old.snapshot_id,
            old.token_count,
            old.created_at,
        )
        assert new.identity.fingerprint == "fp-2"
        assert new.durability is Durability.DURABLE
        assert new.pinned
        canary = await fleet.cwm.registry.canary("acme", new.snapshot_id, new.cache_salt)
        assert canary is not None
        assert canary.origin is Origin.COMPUTED
        thawed = await fleet.cwm.thaw(ANN, old.name)
        assert thawed.session.engine == "two"
        assert not thawed.partial
        assert thawed.receipt.evidence.verification is Verification.EXACT
        assert not fleet.cwm.kv_tier.stored(old.cache_salt), "the old KV is released"
    assert await fleet.cwm.at_rest()


async def test_until_then_a_window_thaws_where_its_kv_is(fleet: Fleet) -> None:
    await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    thawed = await fleet.cwm.thaw(ANN, "w1")
    assert (thawed.session.engine, thawed.partial) == ("one", False)


async def test_kv_that_a_session_on_the_old_deployment_still_uses_stays(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    thawed = await fleet.cwm.thaw(ANN, "w1", "s2")
    assert thawed.session.engine == "one"
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert await until_done(fleet) == [StepOutcome.DONE]
    assert fleet.cwm.kv_tier.stored(old.cache_salt)
    assert not await fleet.cwm.kv_tier.pins(old.cache_salt)
    fleet.one.restart()
    assert (await fleet.cwm.says("s2", " On.")).cached_tokens >= fleet.cwm.kv_tier.chunk_size


async def test_clones_are_frozen_again_too_and_share_what_is_stored(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.clone(ANN, "w1", "w2")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert await until_done(fleet) == [StepOutcome.DONE] * 2
    assert not fleet.cwm.kv_tier.stored(old.cache_salt)
    one, two = await window(fleet, "w1"), await window(fleet, "w2")
    assert one.cache_salt == two.cache_salt
    assert await fleet.cwm.at_rest()


async def test_a_window_that_the_new_deployment_cannot_take_stays_as_it_was_and_holds_up_no_other(
    fleet: Fleet,
) -> None:
    fleet.two.max_model_len = 60
    long = [await frozen(fleet, name, f"s{name}") for name in ("w0", "w1")]
    await fleet.begins("s2", "Short enough for the new one to fit.")
    await fleet.cwm.freeze(ANN, "s2", "w2")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    outcomes = await until_done(fleet)
    assert sorted(outcomes) == [StepOutcome.DONE, StepOutcome.FAILED, StepOutcome.FAILED]
    assert [await window(fleet, each.name) for each in long] == long
    assert (await fleet.cwm.upgrades.show(OPERATOR, "tiny")).windows == WindowCounts(done=1, left=2)
    assert await fleet.cwm.at_rest()
    assert not (await fleet.cwm.thaw(ANN, "w1")).partial


async def test_a_window_whose_blocks_no_tier_takes_stays_as_it_was(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    for name in ("one", "two"):
        fleet.beside(name).full |= set(LOWER)
    (failed,) = await fleet.cwm.renewal(2, dry_run=False)
    assert failed.outcome is StepOutcome.FAILED
    assert "could be stored and read back" in failed.detail
    assert await window(fleet, "w1") == old
    await fleet.cwm.reconcile()
    assert await fleet.cwm.at_rest()
    assert not (await fleet.cwm.thaw(ANN, "w1")).partial


async def test_a_window_whose_tokens_mean_something_else_there_stays_as_it_was(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    identity = await fleet.cwm.directory.identity("tiny", "two")
    other = replace(identity, tokenizer_digest="another")
    fleet.cwm.directory._known["two", "tiny"] = other
    (failed,) = await fleet.cwm.renewal(2, dry_run=False)
    assert (failed.outcome, "another tokenizer" in failed.detail) == (StepOutcome.FAILED, True)
    assert await window(fleet, "w1") == old


async def test_another_chat_template_is_accepted_by_whoever_thaws_and_nobody_else(fleet: Fleet) -> None:
    fleet.two.template = "another"
    await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert await until_done(fleet) == [StepOutcome.DONE]
    await fleet.lose("one")
    with pytest.raises(WindowIncompatibleError, match="chat template"):
        await fleet.cwm.thaw(ANN, "w1")
    assert not (await fleet.cwm.thaw(ANN, "w1", accept_template=True)).partial


async def test_windows_of_which_only_the_tokens_are_kept_are_left_alone(fleet: Fleet) -> None:
    await fleet.begins("s1")
    await fleet.cwm.freeze(ANN, "s1", "w1", retention=Retention.BEST_EFFORT)
    begun = await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    assert begun.windows == WindowCounts(done=0, left=0)
    assert await until_done(fleet) == []


async def new_salt(fleet: Fleet, window: Window) -> str:
    identity = await fleet.cwm.directory.identity("tiny", "two")
    return fleet.cwm.directory.salt(window.tenant, window.salt_scope, identity)


async def test_a_window_that_is_deleted_meanwhile_leaves_nothing(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    salt = await new_salt(fleet, old)
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    renewal = asyncio.create_task(fleet.cwm.renewal(2, dry_run=False))
    await fleet.two.asked.wait()
    await fleet.cwm.delete(ANN, "w1")
    fleet.two.gate.set()
    (step,) = await renewal
    assert step.detail == "it was changed meanwhile"
    assert fleet.cwm.kv_tier.stored(salt)
    await fleet.cwm.reconcile()
    assert await fleet.cwm.registry.window("acme", "w1") is None
    assert not fleet.cwm.kv_tier.stored(salt)
    assert not fleet.cwm.kv_tier.stored(old.cache_salt)
    assert await fleet.cwm.at_rest()


@pytest.mark.parametrize(("engine", "stays"), [("one", False), ("two", True)])
async def test_of_a_window_that_is_deleted_meanwhile_stays_what_a_session_of_the_new_deployment_shares(
    fleet: Fleet, engine: str, stays: bool
) -> None:
    text = "s1 has a context of its own, which takes some blocks at least."
    old = await frozen(fleet, "w1", "s1")
    session = await fleet.cwm.open_session(ANN, "s2")
    await fleet.cwm.registry.settle_session(session, engine, None)
    await fleet.cwm.says("s2", text)
    while await fleet.beside(engine).storing():
        pass
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    salt = await new_salt(fleet, old)
    before = set(fleet.cwm.kv_tier.stored(salt))
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    renewal = asyncio.create_task(fleet.cwm.renewal(2, dry_run=False))
    await fleet.two.asked.wait()
    await fleet.cwm.delete(ANN, "w1")
    fleet.two.gate.set()
    await renewal
    await fleet.cwm.reconcile()
    assert (set(fleet.cwm.kv_tier.stored(salt)) == before, bool(before)) == (True, stays)


async def test_patrols_read_the_windows_of_both_deployments_back(fleet: Fleet) -> None:
    await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await until_done(fleet)
    await frozen(fleet, "w2", "s2")
    assert await fleet.cwm.patrol(8, fleet.cwm.clock.now(), dry_run=False) == []
    for name in ("w1", "w2"):
        found = await window(fleet, name)
        assert found.proven_at is not None
        assert found.proven_at > found.updated_at


async def test_an_engine_that_goes_meanwhile_leaves_the_window_as_it_was_until_it_is_back(
    fleet: Fleet,
) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    fleet.two.away = True
    (postponed,) = await fleet.cwm.renewal(2, dry_run=False)
    assert postponed.outcome is StepOutcome.POSTPONED
    assert await window(fleet, "w1") == old
    fleet.two.away = False
    await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    await fleet.cwm.reconcile()
    assert (await window(fleet, "w1")).identity.fingerprint == "fp-2"
    assert await fleet.cwm.at_rest()


async def failing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, names: Collection[str], fail: Callable[[], CwmError]
) -> None:
    """The new engine fails at the tokens of these windows, and computes the others."""
    complete, refused = FakeEngine.complete, set()
    for name in names:
        found = await window(fleet, name)
        refused.add((await fleet.cwm.registry.snapshot("acme", found.snapshot_id)).token_ids)

    async def answer(engine: FakeEngine, generation: Generation) -> Completion:
        if engine is fleet.two and any(
            generation.token_ids == ids[: len(generation.token_ids)] for ids in refused
        ):
            raise fail()
        return await complete(engine, generation)

    monkeypatch.setattr(FakeEngine, "complete", answer)


@pytest.mark.parametrize("error", [EngineTimeoutError, EngineResponseError])
async def test_windows_at_which_the_engine_fails_are_set_aside_and_the_others_get_their_turn(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: type[CwmError]
) -> None:
    for number in range(4):
        await frozen(fleet, f"w{number}", f"s{number}")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await failing(fleet, monkeypatch, ("w0", "w1"), lambda: error("It failed."))
    first = await fleet.cwm.renewal(2, dry_run=False)
    assert sorted((each.subject, each.outcome) for each in first) == [
        ("w0", StepOutcome.FAILED),
        ("w1", StepOutcome.FAILED),
    ]
    assert await until_done(fleet) == [StepOutcome.DONE] * 2
    monkeypatch.undo()
    fleet.cwm.clock.at += timedelta(hours=1)
    assert await until_done(fleet) == [StepOutcome.DONE] * 2


async def test_a_window_that_kills_the_engine_is_the_last_and_then_set_aside(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await frozen(fleet, f"w{number}", f"s{number}")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")

    def dies() -> CwmError:
        fleet.two.away = True
        return EngineConnectionError("vLLM broke the connection.")

    async def starts_again() -> None:
        fleet.two.away = False
        for _ in range(2):
            await fleet.cwm.directory.look_at("two", fleet.cwm.clock)

    await failing(fleet, monkeypatch, ("w0",), dies)
    renewal = replace(fleet.cwm.renewal, at_once=1)
    (postponed,) = await renewal(2, dry_run=False)
    assert (postponed.subject, postponed.outcome) == ("w0", StepOutcome.POSTPONED)
    assert await renewal(2, dry_run=False) == [], "the engine is away"
    await starts_again()
    second = await renewal(2, dry_run=False)
    assert [(each.subject, each.outcome) for each in second] == [
        ("w1", StepOutcome.DONE),
        ("w2", StepOutcome.DONE),
    ]
    third = await renewal(2, dry_run=False)
    assert [(each.subject, each.outcome) for each in third] == [
        ("w3", StepOutcome.DONE),
        ("w0", StepOutcome.FAILED),
    ]
    await starts_again()
    assert await renewal(2, dry_run=False) == []


async def test_while_the_cache_is_away_no_window_is_set_aside(fleet: Fleet) -> None:
    await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await fleet.cwm.directory.deployments("tiny", "")
    fleet.cwm.kv_tier.away = fleet.beside("two").away = True
    for _ in range(2):
        (postponed,) = await fleet.cwm.renewal(2, dry_run=False)
        assert postponed.outcome is StepOutcome.POSTPONED
    fleet.cwm.kv_tier.away = fleet.beside("two").away = False
    assert await until_done(fleet) == [StepOutcome.DONE]


async def test_while_the_new_deployment_is_away_windows_wait_and_go_on_when_it_is_back(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await fleet.lose("two")
    assert await fleet.cwm.renewal(2, dry_run=False) == []
    assert await window(fleet, "w1") == old
    fleet.two.away = False
    for _ in range(2):
        await fleet.cwm.directory.look_at("two", fleet.cwm.clock)
    assert await until_done(fleet) == [StepOutcome.DONE]


async def test_windows_of_a_tenant_that_the_new_deployment_does_not_serve_are_left_and_that_is_said(
    fleet: Fleet,
) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    fleet.cwm.directory.rules = {"two": EngineRules(tenants=frozenset({"beryl"}))}
    await fleet.cwm.reconcile()
    assert await until_done(fleet) == []
    now = await window(fleet, "w1")
    assert (now.cache_salt, now.identity) == (old.cache_salt, old.identity)
    assert (await fleet.cwm.upgrades.show(OPERATOR, "tiny")).windows == WindowCounts(done=0, left=1)
    (event,) = [
        each
        for each in await fleet.cwm.audit.events("acme", 9)
        if each.event == "reconcile.freeze_again" and each.window_name == "w1"
    ]
    assert (event.outcome, event.details["detail"]) == (
        "failed",
        "No engine of the new deployment serves its tenant.",
    )


async def test_another_tenants_log_names_who_began_the_upgrade_of_its_windows(fleet: Fleet) -> None:
    eve = Principal("elsewhere", "eve")
    session = await fleet.cwm.open_session(eve, "s1")
    await fleet.cwm.registry.settle_session(session, "one", None)
    context = "Eve has a context of her own, which takes some blocks at least."
    await fleet.cwm.generate(eve, "s1", TurnInput(text=context, max_tokens=8))
    await fleet.cwm.freeze(eve, "s1", "w1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await fleet.cwm.reconcile()
    (event,) = [
        each
        for each in await fleet.cwm.audit.events("elsewhere", 9)
        if each.event == "reconcile.freeze_again"
    ]
    assert (event.subject, event.outcome) == ("cwm", "done")
    assert (event.details["actor"], event.details["actor_tenant"]) == ("ann", "acme")


async def test_windows_of_a_new_deployment_without_a_cache_are_left_and_that_is_said(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    identity = replace(await fleet.cwm.directory.identity("tiny", "two"), chunk_size=None)
    fleet.cwm.directory._known["two", "tiny"] = identity
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    (failed,) = await fleet.cwm.renewal(2, dry_run=False)
    assert (failed.outcome, failed.detail) == (
        StepOutcome.FAILED,
        "The engines of the new deployment have no LMCache.",
    )
    assert await window(fleet, "w1") == old


async def test_an_installation_that_reads_no_windows_back_freezes_them_again_all_the_same(
    fleet: Fleet,
) -> None:
    await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    await replace(fleet.cwm.reconcile, patrol_windows=0)()
    assert (await window(fleet, "w1")).identity.fingerprint == "fp-2"


async def test_a_plan_changes_nothing(fleet: Fleet) -> None:
    old = await frozen(fleet, "w1", "s1")
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    (planned,) = await fleet.cwm.renewal(2, dry_run=True)
    assert (planned.action, planned.outcome) == ("freeze_again", StepOutcome.PLANNED)
    assert await window(fleet, "w1") == old
