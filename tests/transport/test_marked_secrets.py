"""No prompt, token or secret in an audit record, a log line or a metric: each is marked and looked for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp import MCPError
from mcp_types import Tool

from tests.adapters.vllm.fake_vllm import MODEL, fake_vllm
from tests.cli.command import serving

pytestmark = pytest.mark.slow

MARK: Final = "MaRkEd"
SECRET, ENGINE_KEY, TOKEN = f"{MARK}-secret", f"{MARK}-engine-key", f"{MARK}-token"
HEADERS: Final = {"authorization": f"Bearer {TOKEN}", "x-api-key": TOKEN, "cookie": f"session={TOKEN}"}
_NAMES: Final[Mapping[str, Any]] = {
    "session_id": "s1",
    "new_session_id": "s2",
    "window_name": "w1",
    "source_window": "w1",
    "target_window": "w2",
    "model": MODEL,
    "scope": "tenant",
    "label": "l1",
    "messages": [{"role": "user", "content": f"{MARK} prompt"}],
}
"""Names are written down as they are: that is what they are for."""


def _valid(tool: Tool) -> dict[str, Any]:
    """Arguments as the tool wants them, marked wherever it takes what people write."""
    fields: Mapping[str, Mapping[str, Any]] = tool.input_schema["properties"]
    given = {name: _NAMES.get(name, _marked(schema)) for name, schema in fields.items()}
    if tool.name == "session_generate":
        del given["text"]
    return {name: value for name, value in given.items() if value is not None}


def _marked(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema or "pattern" in schema or "format" in schema:
        return None
    kinds: Mapping[Any, Any] = {"string": f"{MARK} text", "object": {"note": f"{MARK} note"}}
    return kinds.get(schema.get("type"), f"{MARK} value" if "type" not in schema else None)


def _hostile(tool: Tool) -> dict[str, Any]:
    """Arguments that are refused, each for what is marked in it."""
    return dict.fromkeys(tool.input_schema["properties"], f"$({MARK}) ../ '; DROP TABLE x --")


async def _call_every_tool(url: str) -> int:
    calls = 0
    transport = StreamableHttpTransport(f"{url}/mcp", headers=HEADERS)
    async with Client(transport, mode="legacy") as client:
        tools = sorted(await client.list_tools(), key=lambda tool: tool.name != "session_create")
        for tool in tools:
            for arguments in (_valid(tool), {**_valid(tool), MARK: MARK}, _hostile(tool)):
                await client.call_tool_mcp(tool.name, arguments)
                calls += 1
        with pytest.raises(MCPError):
            await client.call_tool_mcp(f"{MARK}_tool", {})
        for uri in (f"cwm://results/{MARK}", f"cwm://context/tenant/{MARK}", f"cwm://{MARK}"):
            with suppress(MCPError):
                await client.read_resource(uri)
    return calls


async def _call_v1(url: str) -> None:
    chat = {"model": MODEL, "messages": _NAMES["messages"]}
    async with httpx2.AsyncClient(base_url=url, headers=HEADERS, trust_env=False, timeout=30) as http:
        for session in ("s1", "v1", f"$({MARK})"):
            for stream in (False, True):
                await http.post(
                    f"/v1/chat/completions?key={TOKEN}",
                    json={**chat, "stream": stream},
                    headers={"cwm-session-id": session},
                )
        await http.post("/v1/completions", json={"model": MODEL, "prompt": f"{MARK} prompt"})
        await http.post("/v1/completions", json={"model": MARK, "prompt": f"{MARK} prompt"})
        await http.post("/v1/chat/completions", content=f'{{"{MARK}": '.encode())
        for path in ("/v1/models", f"/v1/models/{MARK}", f"/v1/{MARK}", f"/{MARK}?key={TOKEN}"):
            await http.get(path)
        await http.post("/mcp", content=f'{{"{MARK}": '.encode())
        await http.post("/reconcile", json={MARK: MARK})


def _rows(path: Path) -> Iterator[str]:
    with sqlite3.connect(path) as database:
        for row in database.execute("SELECT * FROM audit_log ORDER BY seq"):
            yield json.dumps(row)
    database.close()


async def test_what_is_marked_is_in_no_audit_record_no_log_line_and_no_metric(tmp_path: Path) -> None:
    async with fake_vllm() as vllm:
        with serving(
            tmp_path,
            CWM_VLLM_URL=vllm.url,
            CWM_LMCACHE_URL="none",
            CWM_COORDINATOR_URL="none",
            CWM_SECRET=SECRET,
            CWM_VLLM_API_KEY=ENGINE_KEY,
            CWM_LOG_LEVEL="DEBUG",
        ) as (url, process):
            calls = await _call_every_tool(url)
            await _call_v1(url)
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
                metrics = (await http.get("/metrics")).text
            process.terminate()
            process.wait(30)
        asked = b"".join(seen.body for seen in vllm.seen).decode()
    rows, log = list(_rows(tmp_path / "cwm.db")), (tmp_path / "log").read_text()

    # The marks went through, or there would be nothing to find.
    assert calls > 60
    assert MARK in asked
    assert sum("security.injection" in row for row in rows) > 10
    assert any("session_create" in row for row in rows)
    assert "audit_checkpoint" in log
    assert "cwm_" in metrics

    assert [row for row in rows if MARK in row] == []
    assert [line for line in log.splitlines() if MARK in line] == []
    assert MARK not in metrics
