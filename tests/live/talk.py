"""How live tests talk to a gateway: as an MCP client and as an OpenAI client would."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.types import TextContent


class RefusedError(Exception):
    """A tool's coded error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.retryable: bool = error["retryable"]
        self.context: dict[str, Any] = error["context"]


@dataclass(frozen=True, slots=True)
class Talk:
    """One client of one gateway."""

    url: str
    model: str
    mcp: Client[Any]
    http: httpx2.AsyncClient

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The tool's structured result, or :class:`RefusedError`."""
        result = await self.mcp.call_tool(name, arguments, raise_on_error=False)
        if result.is_error:
            told = result.content[0]
            assert isinstance(told, TextContent)
            raise RefusedError(json.loads(told.text))
        return dict(result.structured_content or {})

    async def complete(
        self, prompt: list[int] | str, *, session: str | None = None, max_tokens: int = 1, **more: Any
    ) -> dict[str, Any]:
        """One greedy completion through /v1/completions; the first choice, with ``usage`` in it."""
        response = await self.http.post(
            f"{self.url}/v1/completions",
            json={
                "model": self.model,
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
                **more,
            },
            headers={"CWM-Session-Id": session} if session else {},
        )
        answer = response.raise_for_status().json()
        return {**answer["choices"][0], "usage": answer["usage"]}

    async def fill(self, prompt: list[int], session: str | None = None) -> tuple[str, list[int]]:
        """A session whose context is ``prompt`` and eight sampled tokens; its id and all its ids."""
        session = session or f"s_{uuid4().hex[:10]}"
        choice = await self.complete(prompt, session=session, max_tokens=8)
        return session, choice["prompt_token_ids"] + choice["token_ids"]


def cached(choice: dict[str, Any]) -> int:
    """Prompt tokens the engine did not compute."""
    return int(choice["usage"]["prompt_tokens_details"]["cached_tokens"])


@asynccontextmanager
async def talk(url: str, model: str, mode: str = "auto", key: str | None = None) -> AsyncIterator[Talk]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(timeout=120, trust_env=False, headers=headers) as http,
        Client(StreamableHttpTransport(f"{url}/mcp", headers=headers), mode=mode) as mcp,
    ):
        yield Talk(url, model, mcp, http)


def words(count: int) -> list[int]:
    """``count`` token ids of the tiny model that no other call of this function returned."""
    seed = uuid4().int
    ids = []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        ids.append(300 + (seed >> 33) % 1500)
    return ids
