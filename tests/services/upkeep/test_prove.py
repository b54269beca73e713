"""Windows whose canary proves nothing are proven while their engine has nothing else to do."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.canary import Canary, Origin
from cwm.domain.upkeep import StepOutcome
from cwm.domain.verdict import Verification
from cwm.domain.window import Durability, Window
from cwm.services.upkeep.prove import Prove
from tests.fakes.kv_tier import Copy
from tests.services.fleet_of import Fleet
from tests.services.replicas_of import ANN
from tests.services.windows_of import Gateway, gateway

pytestmark = pytest.mark.slow


def prove(cwm: Gateway) -> Prove:
    return cwm.reconcile.prove


async def rested(cwm: Gateway) -> None:
    """The engine's rest after the window before is over."""
    cwm.clock.seconds += 3_600


async def canary_of(cwm: Gateway, name: str) -> Canary | None:
    window = await cwm.registry.window("acme", name)
    assert window is not None
    return await cwm.registry.canary("acme", window.snapshot_id, window.cache_salt)


async def loaded(cwm: Gateway, name: str = "w1", *, canary: bool = True, text: str | None = None) -> Window:
    """A window that was frozen from KV that nothing has proven."""
    if text is None:
        await cwm.session(f"of-{name}")
    else:
        await cwm.session(f"of-{name}", text)
    cwm.engine.restart()
    await cwm.says(f"of-{name}", " On.")
    return (await cwm.freeze(ANN, f"of-{name}", name, canary=canary)).window


@pytest.mark.parametrize("canary", [True, False])
async def test_a_window_is_proven_by_its_context_computed_afresh(cwm: Gateway, *, canary: bool) -> None:
    await loaded(cwm, canary=canary)
    cwm.engine.restart()
    (step,) = await prove(cwm)()
    assert (step.subject, step.outcome) == ("w1", StepOutcome.DONE)
    proven = await canary_of(cwm, "w1")
    assert proven is not None
    assert proven.origin is Origin.INHERITED
    assert await prove(cwm)() == []
    cwm.engine.restart()
    assert (await cwm.thaw(ANN, "w1")).receipt.evidence.verification is Verification.EXACT


async def test_what_the_engine_has_computed_itself_is_computed(cwm: Gateway) -> None:
    await cwm.window(canary=False)
    (step,) = await prove(cwm)()
    assert "computed" in step.detail
    proven = await canary_of(cwm, "w1")
    assert proven is not None
    assert proven.origin is Origin.COMPUTED


async def test_wrong_kv_that_was_frozen_is_found_and_stored_anew(cwm: Gateway) -> None:
    """Its canary was recorded on it: thaws could only say that they compared nothing that is proven."""
    await cwm.session()
    key = await cwm.session_key()
    cwm.engine.restart()
    cwm.kv_tier.evict_l1()
    cwm.kv_tier.damage(key, 1, Copy.FORGED)
    await cwm.says("s1", " On.")
    window = (await cwm.freeze(ANN, "s1", "w1")).window
    cwm.engine.restart()
    cwm.kv_tier.evict_l1()
    (step,) = await prove(cwm)()
    assert "wrong" in step.detail
    await cwm.settle()
    again = await cwm.registry.window("acme", "w1")
    assert again is not None
    assert (again.durability, again.cache_salt) == (Durability.DURABLE, window.cache_salt)
    copies = [cwm.kv_tier.copies[name].values() for name in cwm.kv_tier.names(await cwm.key(again))]
    assert {copy for held in copies for copy in held} == {Copy.SOUND}
    assert ("window.quarantine", "mismatch") in await cwm.events()


@pytest.mark.parametrize("busy", [(1.0, 0.0), (0.0, 1.0)])
async def test_an_engine_that_works_for_others_is_left_alone(cwm: Gateway, busy: tuple[float, float]) -> None:
    await loaded(cwm)
    before, cwm.engine.busy = len(cwm.engine.requests), busy
    assert await prove(cwm)() == []
    assert len(cwm.engine.requests) == before
    cwm.engine.busy = (0.0, 0.0)
    assert len(await prove(cwm)()) == 1


async def test_an_engine_proves_one_window_and_rests_four_times_as_long(cwm: Gateway) -> None:
    for number in (1, 2):
        await loaded(
            cwm, f"w{number}", text=f"{number} is a context of its own, as long as some blocks of KV are."
        )
    cwm.engine.restart()
    (first,) = await prove(cwm)()
    assert first.subject == "w2", "the newest is the likeliest to be thawed"
    assert await prove(cwm)() == []
    await rested(cwm)
    (second,) = await prove(cwm)()
    assert second.subject == "w1"


async def test_a_window_that_cannot_be_proven_does_not_delay_the_others(cwm: Gateway) -> None:
    for number in (1, 2):
        await loaded(
            cwm, f"w{number}", text=f"{number} is a context of its own, as long as some blocks of KV are."
        )
    cwm.engine.restart()
    cwm.engine.room = 1
    assert await prove(cwm)() == []
    cwm.engine.room = None
    await rested(cwm)
    (step,) = await prove(cwm)()
    assert step.subject == "w1"


async def test_without_canaries_nothing_is_proven(sqlite: Database) -> None:
    cwm = gateway(sqlite)
    await loaded(cwm)
    asked = cwm.engine.calls
    proving = prove(cwm)
    proving.verify = type(proving.verify)(cwm.engine, cwm.directory, proving.verify.noises, most_places=0)
    assert await proving() == []
    assert cwm.engine.calls == asked
    await cwm.settle()


async def test_an_engine_that_is_away_delays_nothing_and_no_error_comes_of_it(fleet: Fleet) -> None:
    cwm = fleet.cwm
    await fleet.begins("s1")
    fleet.one.restart()
    await cwm.says("s1", " On.")
    await cwm.freeze(ANN, "s1", "w1")
    for engine in fleet.engines.values():
        engine.away = True
    assert await prove(cwm)() == []
