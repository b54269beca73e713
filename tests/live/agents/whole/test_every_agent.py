"""Every agent goes the whole way, and docs/clients.md says what was seen. `make agents` runs it; AGENTS names some of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import pytest

from tests.live.agents.whole import table
from tests.live.agents.whole.agents import OTHERS, PI
from tests.live.agents.whole.steps import NEW, STEPS
from tests.live.agents.whole.way import way_of
from tests.live.engine import LiveEngine, running

pytestmark = [pytest.mark.live, pytest.mark.agents, pytest.mark.timeout(1800)]

_CONTEXT: Final = 32_768
_AGENTS: Final = {agent.name: agent for agent in (PI, *OTHERS)}
_CHOSEN: Final = os.environ.get("AGENTS", "").split() or [*_AGENTS]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    """Longer than the model's own context: in 16,384 tokens Claude Code makes a summary after each answer."""
    longer = f"""--hf-overrides '{{"max_position_embeddings": {_CONTEXT}}}'"""
    folder = tmp_path_factory.mktemp("longer")
    with running(folder, "smollm2-135m", engine_args=longer, context=_CONTEXT, kv_cache_gb=2) as engine:
        yield engine


@pytest.mark.parametrize("name", _CHOSEN)
async def test_an_agent_goes_the_whole_way(
    engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    agent = _AGENTS[name]
    seen: dict[str, str] = {}
    missed: dict[str, str] = {}
    async with way_of(agent, engine, tmp_path_factory.mktemp("way")) as way:
        for column, step in STEPS.items():
            if agent.resume is None and column not in NEW:
                seen[column] = "not tried: it resumes on a terminal alone"
                continue
            try:
                seen[column] = await step(way)
            except AssertionError as error:
                missed[column] = str(error)
    assert not missed, (seen, missed)
    table.write(table.PAGE, name, agent.version, seen, datetime.now(UTC).date())
