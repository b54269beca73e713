"""A benchmark agent: it fills sessions over the OpenAI API and calls tools over MCP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
from fastmcp import Client

from cwm_bench.harness.mcp_client import mcp_client

_TIMEOUT_SECONDS = 600.0
_SAMPLED = 8


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer: its sampled token ids, and ms until the first one and until the end."""

    token_ids: list[int]
    first_ms: float
    whole_ms: float


@dataclass(frozen=True, slots=True)
class Agent:
    """A client of one gateway. A failed tool raises ToolError, a failed request HTTPStatusError."""

    url: str
    model: str
    http: httpx2.AsyncClient
    mcp: Client[Any]

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = await self.mcp.call_tool(name, arguments)
        return dict(result.structured_content or {})

    async def timed_tool(self, name: str, **arguments: Any) -> tuple[dict[str, Any], float]:
        """The answer, and its ms."""
        started = time.perf_counter()
        answer = await self.tool(name, **arguments)
        return answer, (time.perf_counter() - started) * 1000

    async def fill(self, prompt: Sequence[int], sampled: int = _SAMPLED) -> tuple[str, list[int]]:
        """Fill a new session with ``prompt`` and ``sampled`` tokens more; its id and all its token ids."""
        session = f"bench_{uuid4().hex[:12]}"
        return session, [*prompt, *await self.complete(prompt, sampled, session=session)]

    async def complete(
        self, prompt: Sequence[int], max_tokens: int, *, session: str | None = None
    ) -> list[int]:
        """The token ids of the greedy continuation of ``prompt``."""
        response = await self.http.post(
            f"{self.url}/v1/completions", json=self._greedy(prompt, max_tokens), headers=_named(session)
        )
        ids: list[int] = response.raise_for_status().json()["choices"][0]["token_ids"]
        return ids

    async def stream(self, prompt: Sequence[int], max_tokens: int, *, session: str | None = None) -> Streamed:
        """:meth:`complete`, token by token and timed."""
        body = {**self._greedy(prompt, max_tokens), "stream": True}
        ids: list[int] = []
        first = 0.0
        started = time.perf_counter()
        async with self.http.stream(
            "POST", f"{self.url}/v1/completions", json=body, headers=_named(session)
        ) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                ids += _sampled_in(line)
                if ids and not first:
                    first = time.perf_counter() - started
        return Streamed(ids, first * 1000, (time.perf_counter() - started) * 1000)

    def _greedy(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }


@asynccontextmanager
async def agent(url: str, model: str) -> AsyncIterator[Agent]:
    # A server closes a connection after some idle seconds, and a request at that moment fails.
    limits = httpx2.Limits(max_connections=8, keepalive_expiry=2)
    async with (
        httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False, limits=limits) as http,
        mcp_client(f"{url}/mcp") as mcp,
    ):
        yield Agent(url, model, http, mcp)


def _named(session: str | None) -> dict[str, str]:
    return {"CWM-Session-Id": session} if session else {}


def _sampled_in(line: str) -> list[int]:
    if not line.startswith("data: {"):
        return []
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return choices[0]["token_ids"] or [] if choices else []
