"""Large results of the protocol's reference servers: nine tenths of their tokens stay away, and every byte can be had."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp_types import CallToolResult

from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm.services.results.answers import ToolAnswer, count, parts_of
from cwm_bench.harness import captured, responses, token_corpus
from tests.node.programs import CommandLine, Programs, environment
from tests.transport.mcp.gateway import LEGACY, Agent, fastmcp_agent, gateway
from tests.transport.mcp.upstreams.test_real_upstreams import spec

pytestmark = pytest.mark.slow

KILOBYTES = 220
SAVED = 0.9
Asked = tuple[str, dict[str, Any]]


def library(root: Path) -> list[Asked]:
    """Answers of web APIs and generated ones like them, a log and a folder of many files, and how server-filesystem is asked for them."""
    root.mkdir()
    for name, make in responses.RESPONSES.items():
        answer = make(KILOBYTES)
        (root / f"{name}.json").write_text(answer if isinstance(answer, str) else json.dumps(answer))
    for name in captured.NAMES:
        (root / f"{name}.json").write_text(captured.answer(name))
    (root / "big.log").write_text(token_corpus.text("logs", KILOBYTES * 1000))
    (root / "data").mkdir()
    for number in range(3_000):
        (root / "data" / f"measurement_{number * 7919 % 100_003:06d}.parquet").touch()
    files = [*(f"{name}.json" for name in (*responses.RESPONSES, *captured.NAMES)), "big.log"]
    return [
        *(("read_text_file", {"path": str(root / name)}) for name in files),
        ("list_directory", {"path": str(root / "data")}),
        ("directory_tree", {"path": str(root)}),
    ]


def answer(result: CallToolResult) -> ToolAnswer:
    assert not result.is_error
    content = [item.model_dump(by_alias=True, mode="json", exclude_none=True) for item in result.content]
    return ToolAnswer(content, result.structured_content)


async def read_back(agent: Agent, cursor: str) -> list[bytes]:
    """The parts of a stored result, from its pages."""
    parts: dict[int, bytes] = {}
    while cursor:
        page = (await agent.call("result_read", {"cursor": cursor})).value
        body = base64.b64decode(page["text"]) if page["encoding"] == "base64" else page["text"].encode()
        parts[page["part"]] = parts.get(page["part"], b"") + body
        cursor = page.get("next_cursor", "")
    return [parts[number] for number in range(len(parts))]


@asynccontextmanager
async def both_ways(folder: Path, era: str, line: CommandLine) -> AsyncIterator[tuple[Client[Any], Agent]]:
    """A client of the program itself, and an agent of a gateway in front of another one."""
    transport = StdioTransport(line[0], list(line[1:]), env=environment(), keep_alive=False)
    async with (
        Client(transport, mode=LEGACY) as direct,
        gateway(folder, upstreams=[spec("up", line)]) as running,
        fastmcp_agent(running.url, era) as agent,
    ):
        yield direct, agent


async def require_saved_and_recovered(direct: Client[Any], agent: Agent, asked: list[Asked]) -> None:
    counter = BpeTokenCounter()
    for tool, arguments in asked:
        whole = answer(await direct.call_tool_mcp(tool, arguments))
        result = await agent.client.call_tool_mcp(f"up_{tool}", arguments)
        had = (await count(whole, counter)).tokens
        delivered = (await count(answer(result), counter)).tokens
        assert delivered <= (1 - SAVED) * had, (tool, arguments, had, delivered)
        back = await read_back(agent, result.meta["dev.cwm/result"]["cursor"])
        assert back == [part.body for part in parts_of(whole)], (tool, arguments)


async def test_large_files_and_listings_cost_a_tenth_and_are_recovered_byte_for_byte(
    tmp_path: Path, era: str, programs: Programs
) -> None:
    asked = library(tmp_path / "root")
    async with both_ways(tmp_path, era, programs.filesystem(tmp_path / "root")) as (direct, agent):
        await require_saved_and_recovered(direct, agent, asked)


async def test_what_everything_says_at_length_costs_a_tenth_and_is_recovered_byte_for_byte(
    tmp_path: Path, era: str, programs: Programs
) -> None:
    prose = token_corpus.text("mixed", KILOBYTES * 1000)
    asked = [("echo", {"message": message}) for message in (prose, responses.search(KILOBYTES))]
    async with both_ways(tmp_path, era, programs.everything()) as (direct, agent):
        await require_saved_and_recovered(direct, agent, asked)
