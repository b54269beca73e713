"""A gateway that is killed between any two steps of freezing a window again leaves it as it was, or renewed; and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.window import Durability
from tests.services.fleet_of import Fleet
from tests.services.fleet_of import fleet as a_fleet
from tests.services.moves.mortal import DiedError, Life, mortal_gateway
from tests.services.replicas_of import ANN, OPERATOR

pytestmark = pytest.mark.slow


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    """Whose second engine is of another deployment."""
    opened = a_fleet(database)
    opened.two.fingerprint, opened.two.weights = "fp-2", "w-2"
    yield opened
    await opened.cwm.settle()


async def test_the_next_gateway_goes_on_wherever_it_was_killed(fleet: Fleet, database: Database) -> None:
    await fleet.cwm.upgrades.begin(OPERATOR, "tiny", "two")
    ends = set()
    for last in itertools.count(1):
        name = f"w{last}"
        await fleet.begins(f"s{last}", f"{last}: a context of its own, which takes some blocks at least.")
        old = (await fleet.cwm.freeze(ANN, f"s{last}", name)).window
        dying = mortal_gateway(database, fleet, Life(last))
        try:
            await dying.renewal(2, dry_run=False)
        except DiedError:
            pass
        else:
            break
        found = await fleet.cwm.registry.window("acme", name)
        assert found is not None
        assert found.durability is Durability.DURABLE
        ends.add(found.identity.fingerprint)
        assert found.identity.fingerprint == "fp-2" or found == old
        assert not (await fleet.cwm.thaw(ANN, name)).partial
        await fleet.cwm.reconcile()
        await fleet.cwm.settle()
        renewed = await fleet.cwm.registry.window("acme", name)
        assert renewed is not None
        assert renewed.identity.fingerprint == "fp-2"
        await fleet.cwm.reconcile()
        assert await fleet.cwm.at_rest()
        # Each look reads all windows back.
        await fleet.cwm.delete(ANN, name, force=True)
    assert ends == {"fp-1", "fp-2"}
    assert last > 10
