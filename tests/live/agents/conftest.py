"""One engine with a small real model, for agents and for what they need of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.live.agents.house import House
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running
from tests.live.talk import Talk, talk


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running(tmp_path_factory.mktemp("smollm2"), "smollm2-135m") as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    """One for each file, which finds none of the others' sessions."""
    with served(engine, tmp_path_factory.mktemp("gateway") / "cwm.db", "acme") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def house(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One for each file that loses everything."""
    house = House(engine, tmp_path_factory.mktemp("house") / "cwm.db")
    house.start()
    yield house
    house.stop()


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client
