"""Budgets in front of the protocol's reference servers, over several gateways, and for clients of others."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cwm.domain.budgets import Budgets
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Shared
from tests.node.programs import Programs
from tests.transport.mcp.gateway import Agent, fastmcp_agent, gateway, sdk_agent
from tests.transport.mcp.proxy import RoundRobin, balanced
from tests.transport.mcp.talkative_server import prose, talkative
from tests.transport.mcp.upstreams.test_real_upstreams import spec

pytestmark = pytest.mark.slow

SMALL = ToolPolicy(max_tokens=1_500, preview_tokens=600)
OTHERS = [("v1", "legacy"), ("v2", "legacy"), ("v2", "2026-07-28")]
WRITING = {"files_write_file": ToolPolicy(references=True)}
MOVED_BYTES = 300_000
MOST_TOKENS = 3_000


@pytest.mark.parametrize("client", [fastmcp_agent, sdk_agent])
async def test_a_300_kb_file_moves_between_two_tools_without_being_read(
    tmp_path: Path, era: str, programs: Programs, client: Any
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text(prose(MOVED_BYTES))
    budgets = Budgets(policies=ToolPolicies(by_name=WRITING))
    upstreams = [spec("files", programs.filesystem(root))]
    async with (
        gateway(tmp_path, upstreams=upstreams, budgets=budgets) as running,
        client(running.url, era) as agent,
    ):
        read = await agent.call("files_read_text_file", {"path": str(root / "a.txt")})
        told = read.meta["dev.cwm/result"]
        content = {"$cwm": told["handle"]}
        wrote = await agent.call("files_write_file", {"path": str(root / "b.txt"), "content": content})
        assert not wrote.is_error, wrote.text
        assert (root / "b.txt").read_bytes() == (root / "a.txt").read_bytes()
        savings = running.parts.services.delivery.savings.of(agent.tenant)
        assert savings.delivered < MOST_TOKENS
        assert savings.saved > 20 * savings.delivered
        assert await pages(agent, told["cursor"]) == (root / "a.txt").read_bytes()


async def pages(agent: Agent, cursor: str) -> bytes:
    body = b""
    while cursor:
        page = (await agent.call("result_read", {"cursor": cursor})).value
        body += base64.b64decode(page["text"]) if page["encoding"] == "base64" else page["text"].encode()
        cursor = page.get("next_cursor", "")
    return body


@pytest.mark.parametrize(("sdk", "era"), OTHERS)
async def test_a_typescript_client_that_checks_schemas_takes_a_preview(
    tmp_path: Path, programs: Programs, sdk: str, era: str
) -> None:
    calls: list[Any] = [
        ["t_rows", {"count": 300}],
        ["t_prose", {"size": 30_000}],
        ["t_fail", {"size": 30_000}],
    ]
    async with (
        talkative("t") as (upstream, _),
        gateway(tmp_path, upstreams=[upstream], budgets=Budgets(policies=ToolPolicies(SMALL))) as running,
    ):
        visitor = (sdk, era, f"{running.url}/mcp", f"t-{uuid4().hex[:8]}", json.dumps(calls))
        ended = await programs.script("client.mjs", *visitor)
    assert ended.status == 0, ended.told
    rows, text, failed = json.loads(ended.out)["answers"]
    assert 0 < len(rows["structuredContent"]["rows"]) < 300
    for answer in (rows, text, failed):
        assert answer["_meta"]["dev.cwm/result"]["handle"].startswith("r_")
        assert {"text", "resource_link"} == {item["type"] for item in answer["content"]}
    assert failed["isError"] is True


@asynccontextmanager
async def two_gateways(
    folder: Path, redis_url: str, upstream: UpstreamSpec, budgets: Budgets
) -> AsyncIterator[tuple[str, RoundRobin]]:
    """Behind one URL, where requests take turns; they share a Valkey, and no registry."""
    async with AsyncExitStack() as stack:
        urls = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            shared = Shared(shared_store_url=redis_url)
            started = gateway(folder / name, upstreams=[upstream], budgets=budgets, shared=shared)
            urls.append((await stack.enter_async_context(started)).url)
        yield await stack.enter_async_context(balanced(*urls))


async def test_what_one_gateway_kept_another_puts_into_a_call(
    tmp_path: Path, era: str, redis_url: str
) -> None:
    policies = ToolPolicies(SMALL, {"t_take": ToolPolicy(references=True)})
    async with (
        talkative("t") as (upstream, given),
        two_gateways(tmp_path, redis_url, upstream, Budgets(policies=policies)) as (url, _),
        fastmcp_agent(url, era) as agent,
    ):
        for _ in range(2):
            told = (await agent.call("t_prose", {"size": 30_000})).meta["dev.cwm/result"]
            await agent.call("session_list")
            await agent.call("t_take", {"value": {"$cwm": f"{told['handle']}#"}})
        assert given.values == [prose(30_000)] * 2


async def test_gateways_count_together_how_an_agents_window_fills(tmp_path: Path, redis_url: str) -> None:
    window = 16_000
    budgets = Budgets(policies=ToolPolicies(SMALL), window_tokens=window)
    async with (
        talkative("t") as (upstream, _),
        two_gateways(tmp_path, redis_url, upstream, budgets) as (url, proxy),
        fastmcp_agent(url, "legacy") as agent,
    ):
        whole = 0
        while "dev.cwm/result" not in (answer := await agent.call("t_prose", {"size": 4_500})).meta:
            whole += 1
        assert all(replica.answered > 2 for replica in proxy.replicas.values())
        tokens = answer.meta["dev.cwm/result"]["tokens"]
        assert tokens < SMALL.max_tokens
        # Each alone would go on to nearly twice that.
        assert whole * tokens <= window
