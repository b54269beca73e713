"""One agent goes its whole way in each run of the suite; `make agents` has the others."""

from __future__ import annotations

import pytest

from tests.live.agents.whole.agents import PI
from tests.live.agents.whole.steps import lost_gateway, resumed, task, tomorrow, wrong_key
from tests.live.agents.whole.way import way_of
from tests.live.engine import LiveEngine

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def test_an_agent_edits_a_file_and_goes_on_whatever_comes_between(
    engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with way_of(PI, engine, tmp_path_factory.mktemp("way")) as way:
        await task(way)
        assert (await resumed(way)).startswith("all ")
        assert await tomorrow(way)
        assert (await lost_gateway(way)).startswith("goes on by itself")
        assert await wrong_key(way)
