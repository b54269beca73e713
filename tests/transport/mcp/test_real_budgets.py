"""Budgets in front of the protocol's reference servers, and what clients of others make of previews."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cwm.domain.budgets import Budgets
from cwm.domain.tool_policy import ToolPolicies, ToolPolicy
from tests.node.programs import Programs
from tests.transport.mcp.gateway import Agent, fastmcp_agent, gateway, sdk_agent
from tests.transport.mcp.talkative_server import prose, talkative
from tests.transport.mcp.test_real_upstreams import spec

pytestmark = pytest.mark.slow

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
        content = {"$cwm": f"{told['handle']}#"}
        wrote = await agent.call("files_write_file", {"path": str(root / "b.txt"), "content": content})
        assert not wrote.is_error, wrote.text
        assert (root / "b.txt").read_bytes() == (root / "a.txt").read_bytes()
        savings = running.parts.services.delivery.savings
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
    policy = ToolPolicy(max_tokens=1_500, preview_tokens=600)
    calls: list[Any] = [
        ["t_rows", {"count": 300}],
        ["t_prose", {"size": 30_000}],
        ["t_fail", {"size": 30_000}],
    ]
    async with (
        talkative("t") as (upstream, _),
        gateway(tmp_path, upstreams=[upstream], budgets=Budgets(policies=ToolPolicies(policy))) as running,
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
