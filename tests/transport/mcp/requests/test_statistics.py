"""A number that a tenant may read counts what is the tenant's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from cwm.domain.access import OF_AN_AGENT, spelled
from cwm.settings import Database
from tests.tenancy import A, B, TwoTenants, two_tenants
from tests.transport.mcp.gateway import MODERN, ToolReply, fastmcp_agent

pytestmark = pytest.mark.slow

AGENT = " ".join(spelled(OF_AN_AGENT))
# Of the clock, and of the gateway's own process.
PASSING = {"latency_ms", "uptime_seconds", "since"}
TURN = {"model": "fake", "messages": [{"role": "user", "content": "Seven seals"}]}


@pytest.fixture
async def tenants(tmp_path: Path) -> AsyncIterator[TwoTenants]:
    async with two_tenants(tmp_path, Database(db_path=tmp_path / "cwm.db")) as running:
        yield running


@asynccontextmanager
async def agent(tenants: TwoTenants, tenant: str, scopes: str) -> AsyncIterator[Client[Any]]:
    headers = {"x-tenant": tenant, "x-scopes": scopes}
    async with Client(StreamableHttpTransport(f"{tenants.url}/mcp", headers=headers), mode=MODERN) as client:
        yield client


def lasting(value: Any) -> Any:
    """The value without what changes by itself."""
    if isinstance(value, dict):
        return {name: lasting(each) for name, each in value.items() if name not in PASSING}
    return [lasting(each) for each in value] if isinstance(value, list) else value


async def all_that_is_told(tenants: TwoTenants, reader: Client[Any]) -> dict[str, Any]:
    """What the reader's tools, resources and endpoints answer to a question that names nothing."""
    told: dict[str, Any] = {}
    for tool in await reader.list_tools():
        if tool.annotations and tool.annotations.read_only_hint and not tool.input_schema.get("required"):
            told[tool.name] = (await reader.call_tool_mcp(tool.name, {})).structured_content
    for resource in await reader.list_resources():
        told[str(resource.uri)] = [json.loads(c.text) for c in await reader.read_resource(str(resource.uri))]  # type: ignore[union-attr]
    async with httpx2.AsyncClient(base_url=tenants.url, trust_env=False) as http:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/models"):
            answer = await http.get(path, headers={"x-tenant": B, "x-scopes": AGENT})
            told[path] = [answer.status_code, answer.json()]
    return {name: lasting(answer) for name, answer in told.items()}


async def everything_is_used(tenants: TwoTenants) -> None:
    """A uses all that has a figure: turns by both faces, shared context, stored results."""
    async with fastmcp_agent(tenants.url, MODERN, A) as a:
        await a.call("session_create", {"session_id": "counted"})
        for _ in range(2):
            turn: ToolReply = await a.call("session_generate", {"session_id": "counted", "text": "Once more"})
            assert turn.value["prompt_tokens"] > 0
        await a.call("context_set", {"key": "big", "value": "x" * 50_000, "scope": "tenant"})
        await a.call("context_get", {"key": "big", "scope": "tenant"})
        await a.client.read_resource(f"cwm://results/{tenants.owned['handle']}")
        assert (await a.call("cache_stats")).value["results"]["read_later_tokens"] > 0
    async with httpx2.AsyncClient(base_url=tenants.url, trust_env=False) as http:
        answer = await http.post("/v1/chat/completions", headers={"x-tenant": A}, json=TURN)
        assert answer.status_code == 200


async def test_nothing_that_a_tenant_does_moves_a_number_that_another_reads(tenants: TwoTenants) -> None:
    async with agent(tenants, B, AGENT) as b, agent(tenants, "another", AGENT) as other:
        before = await all_that_is_told(tenants, b)
        assert {"cache_stats", "context_stats", "health_check", "cwm://stats"} <= set(before)
        assert before["/metrics"][0] == 403
        await everything_is_used(tenants)
        # What B asked for itself counts as B's; nobody has asked for the other yet.
        assert await all_that_is_told(tenants, other) == before


async def test_a_tenants_own_turns_move_its_hit_rate(tenants: TwoTenants) -> None:
    async with fastmcp_agent(tenants.url, MODERN, B) as b:
        assert (await b.call("cache_stats")).value["vllm"]["cached_tokens"] == 0
        await b.call("session_create", {"session_id": "s"})
        turns = [
            (await b.call("session_generate", {"session_id": "s", "text": "And?"})).value for _ in range(2)
        ]
        cached, prompt = (sum(turn[name] for turn in turns) for name in ("cached_tokens", "prompt_tokens"))
        async with httpx2.AsyncClient(base_url=tenants.url, trust_env=False) as http:
            answer = await http.post("/v1/chat/completions", headers={"x-tenant": B}, json=TURN)
        usage = answer.json()["usage"]
        cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        prompt += usage["prompt_tokens"]
        vllm = (await b.call("cache_stats")).value["vllm"]
        assert (vllm["cached_tokens"], vllm["hit_rate"]) == (cached, round(cached / prompt, 4))


async def test_figures_of_the_whole_engine_and_process_are_for_admins_of_the_gateways_own_tenant(
    tenants: TwoTenants,
) -> None:
    async with agent(tenants, "default", "admin") as operator:
        for tool, hidden in (("cache_stats", "engine"), ("context_stats", "memory")):
            of_all = (await operator.call_tool_mcp(tool, {})).structured_content
            assert of_all is not None
            assert of_all[hidden]
            for who, scopes in ((B, AGENT), (B, "admin"), ("default", AGENT)):
                async with agent(tenants, who, scopes) as other:
                    stats = (await other.call_tool_mcp(tool, {})).structured_content
                assert stats is not None
                assert hidden not in stats
                assert "tiers" not in stats.get("kv_store", {})
    async with agent(tenants, B, "admin") as admin:
        assert not {"get_metrics_data", "engine_upgrade"} & {tool.name for tool in await admin.list_tools()}
        refused = await admin.call_tool_mcp("get_metrics_data", {})
        assert "CWM-9002" in str(refused.content)
