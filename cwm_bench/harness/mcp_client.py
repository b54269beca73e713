"""MCP clients of a benchmark's own servers, without the proxies of the environment."""

from __future__ import annotations

from typing import Any, Final

import httpx2
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

_TIMEOUT: Final = httpx2.Timeout(30, read=300)


def mcp_client(url: str, **options: Any) -> Client[Any]:
    """A client of the MCP server at ``url``."""
    return Client(StreamableHttpTransport(url, httpx_client_factory=_straight), **options)


def _straight(
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    **others: Any,
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers=headers, timeout=timeout or _TIMEOUT, auth=auth, trust_env=False, **others
    )
