"""Agents of a gateway: MCP clients of either protocol era, over a socket."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from cwm.services.results.answers import ToolAnswer
from cwm_bench.harness.mcp_client import mcp_client

LEGACY: Final = "legacy"
MODERN: Final = "2026-07-28"
ERAS: Final = (LEGACY, MODERN)

SHARED: Final = "dev.cwm/shared"
RESULT: Final = "dev.cwm/result"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call; ``answer`` as it is on the wire."""

    answer: ToolAnswer
    meta: dict[str, Any]
    milliseconds: float

    @property
    def text(self) -> str:
        return str(self.answer.content[0]["text"])

    @property
    def value(self) -> dict[str, Any]:
        return dict(self.answer.structured)


@dataclass(slots=True)
class ReadBack:
    """A stored result read from its first page to its last: its parts, and ms of each page."""

    parts: dict[int, bytes] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Agent:
    era: str
    client: Client[Any]

    async def call(self, tool: str, arguments: dict[str, Any] | None = None) -> ToolResult:
        """Call ``tool``; raises RuntimeError when it reports an error."""
        began = time.perf_counter()
        result = await self.client.call_tool_mcp(tool, arguments or {})
        milliseconds = (time.perf_counter() - began) * 1000
        content = [item.model_dump(by_alias=True, mode="json", exclude_none=True) for item in result.content]
        answer = ToolAnswer(content, result.structured_content, bool(result.is_error))
        if answer.is_error:
            raise RuntimeError(f"{tool}: {content[0].get('text', '')[:300]}")
        return ToolResult(answer, dict(result.meta or {}), milliseconds)

    async def read_back(self, cursor: str) -> ReadBack:
        """Read a whole stored result, page by page."""
        back = ReadBack()
        while cursor:
            result = await self.call("result_read", {"cursor": cursor})
            page = result.value
            body = page["text"].encode()
            if page["encoding"] == "base64":
                body = base64.b64decode(body)
            back.parts[page["part"]] = back.parts.get(page["part"], b"") + body
            back.milliseconds.append(result.milliseconds)
            cursor = page.get("next_cursor", "")
        return back


@asynccontextmanager
async def agent(url: str, era: str) -> AsyncIterator[Agent]:
    async with mcp_client(url, mode=era) as client:
        yield Agent(era, client)


@asynccontextmanager
async def program(line: Sequence[str], variables: Mapping[str, str]) -> AsyncIterator[Agent]:
    """A client of a program that it starts, over stdio in the handshake era."""
    transport = StdioTransport(line[0], list(line[1:]), env=dict(variables), keep_alive=False)
    async with Client(transport, mode=LEGACY) as client:
        yield Agent(LEGACY, client)
