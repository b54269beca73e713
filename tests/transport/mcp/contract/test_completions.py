"""Values for the arguments of upstreams' prompts and resource templates, while somebody types them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastmcp.exceptions import McpError
from mcp_types import PromptReference, ResourceTemplateReference

from cwm.domain.upstream import Selection
from cwm.settings import Limits
from tests.transport.mcp.gateway import LEGACY, MODERN, Agent, fastmcp_agent, gateway
from tests.transport.mcp.upstream_hosts import hosted

pytestmark = pytest.mark.slow

UPSTREAM_ERAS = pytest.mark.parametrize("upstream_era", [LEGACY, MODERN])
GREET = PromptReference(name="notes_greet")
TWO = Limits(rate_limit_principal="2/minute")
DAY = ResourceTemplateReference(uri="notes://notes/on/{day}")


async def completed(
    agent: Agent,
    ref: PromptReference | ResourceTemplateReference,
    typed: str,
    given: dict[str, str] | None = None,
) -> list[str]:
    found: list[str] = (await agent.client.complete(ref, {"name": "a", "value": typed}, given)).values
    return found


@UPSTREAM_ERAS
async def test_an_upstream_completes_what_it_offers_under_the_names_that_clients_see(
    tmp_path: Path, era: str, upstream_era: str
) -> None:
    async with (
        hosted(legacy=upstream_era == LEGACY) as host,
        gateway(tmp_path, upstreams=[host.spec("notes")]) as running,
        fastmcp_agent(running.url, era) as agent,
    ):
        assert await completed(agent, GREET, "A") == ["Ada", "Alan"]
        assert await completed(agent, GREET, "A", {"other": "Ada"}) == ["Alan"]
        assert await completed(agent, DAY, "m") == ["monday"]


async def test_what_is_not_shown_is_not_completed(tmp_path: Path, era: str) -> None:
    async with hosted(legacy=False) as host:
        spec = host.spec("notes", prompts=Selection(allow=()), resources=Selection(deny=("notes://on/*",)))
        async with gateway(tmp_path, upstreams=[spec]) as running, fastmcp_agent(running.url, era) as agent:
            assert await completed(agent, GREET, "A") == []
            assert await completed(agent, DAY, "m") == []
            assert await completed(agent, PromptReference(name="nobodys_prompt"), "A") == []
        assert host.seen.calls["complete"] == 0


@UPSTREAM_ERAS
async def test_an_upstream_that_does_not_complete_knows_of_no_values(
    tmp_path: Path, era: str, upstream_era: str
) -> None:
    async with (
        hosted(legacy=upstream_era == LEGACY, completes=False) as host,
        gateway(tmp_path, upstreams=[host.spec("notes")]) as running,
        fastmcp_agent(running.url, era) as agent,
    ):
        assert await completed(agent, GREET, "A") == []


async def test_an_upstream_that_is_away_is_told_of_not_taken_for_one_without_values(
    tmp_path: Path, era: str
) -> None:
    async with (
        hosted(legacy=False) as host,
        gateway(tmp_path, upstreams=[host.spec("notes", connect_seconds=1)]) as running,
        fastmcp_agent(running.url, era) as agent,
    ):
        assert await completed(agent, DAY, "s") == ["sunday"]
        await host.stop()
        with pytest.raises(McpError) as refused:
            await completed(agent, DAY, "s")
        assert refused.value.error.data["code"] == "CWM-5003"


async def test_completions_count_against_the_limits_of_whoever_types(tmp_path: Path, era: str) -> None:
    async with (
        hosted(legacy=False) as host,
        gateway(tmp_path, upstreams=[host.spec("notes")], limits=TWO) as running,
        fastmcp_agent(running.url, era) as agent,
    ):
        for _ in range(2):
            await completed(agent, DAY, "s")
        with pytest.raises(McpError) as refused:
            await completed(agent, DAY, "s")
        assert refused.value.error.data["code"] == "CWM-7001"
        assert host.seen.calls["complete"] == 2
