"""Wrong KV in a fleet: every engine that has a copy drops it, also one that is away when it is found."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.engine_health import BACK_AFTER
from cwm.domain.verdict import Verification
from tests.fakes.kv_tier import Copy
from tests.services.fleet_of import Fleet, fleet
from tests.services.replicas_of import ANN

pytestmark = pytest.mark.slow


@pytest.fixture
def engines(sqlite: Database) -> Fleet:
    return fleet(sqlite)


async def condemned(fleet: Fleet) -> None:
    """The window of a session on the first engine is found wrong there."""
    await fleet.begins("s1")
    window = (await fleet.cwm.freeze(ANN, "s1", "w1")).window
    fleet.one.restart()
    for name in ("one", "two"):
        fleet.beside(name).evict_l1()
        fleet.beside(name).damage(await fleet.cwm.key(window), 0, Copy.FORGED)
    thawed = await fleet.cwm.thaw(ANN, "w1", "s2")
    assert thawed.receipt.evidence.verification is Verification.MISMATCH
    await fleet.cwm.settle()


def drops(fleet: Fleet, engine: str) -> int:
    return sum(request.drop_after is not None for request in fleet.engines[engine].requests)


async def back(fleet: Fleet) -> None:
    fleet.two.away = False
    for _ in range(BACK_AFTER):
        await fleet.cwm.directory.look_at("two", fleet.cwm.clock)


async def test_every_engine_of_the_deployment_drops_its_copy(engines: Fleet) -> None:
    await condemned(engines)
    assert [drops(engines, name) for name in ("one", "two", "other")] == [1, 1, 0]


async def test_an_engine_that_is_away_drops_its_copy_when_it_is_back_and_the_tenant_keeps_its_scope(
    engines: Fleet,
) -> None:
    await engines.lose("two")
    await condemned(engines)
    await engines.cwm.quarantine.drop_owed()
    assert [drops(engines, name) for name in ("one", "two")] == [1, 0]
    await back(engines)
    await engines.cwm.quarantine.drop_owed()
    await engines.cwm.quarantine.drop_owed()
    assert drops(engines, "two") == 1
    assert await engines.cwm.registry.current_scope("acme", "tenant:acme") == "tenant:acme"


async def test_an_engine_that_comes_back_and_cannot_drop_has_the_scope_left(engines: Fleet) -> None:
    await engines.lose("two")
    await condemned(engines)
    engines.two.drops = False
    await back(engines)
    await engines.cwm.quarantine.drop_owed()
    assert await engines.cwm.registry.current_scope("acme", "tenant:acme") == "tenant:acme#1"
