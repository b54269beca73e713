from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.traces.sink import Sink, sink
from tests.transport.mcp.gateway import LEGACY, MODERN


@pytest.fixture
def collector() -> Iterator[Sink]:
    with sink() as one:
        yield one


@pytest.fixture(params=[LEGACY, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)
