from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.transport.mcp.gateway import (
    LEGACY,
    MODERN,
    Agent,
    Gateway,
    fastmcp_agent,
)
from tests.transport.mcp.gateway import (
    gateway as running_gateway,
)
from tests.transport.mcp.wire import Wire, wired


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One a file; tests keep apart by tenant."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    async with running_gateway(folder) as running:
        yield running


@pytest.fixture(params=[LEGACY, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def agent(gateway: Gateway, era: str) -> AsyncIterator[Agent]:
    """A client of either era, acting for a tenant of its own."""
    async with fastmcp_agent(gateway.url, era) as one:
        yield one


@pytest.fixture
async def operator(gateway: Gateway, era: str) -> AsyncIterator[Agent]:
    """One of the gateway's own tenant, with every scope."""
    async with fastmcp_agent(gateway.url, era, "acme") as one:
        yield one


@pytest.fixture
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    async with wired(gateway.url) as one:
        yield one
