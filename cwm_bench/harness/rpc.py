"""MCP over HTTP without a client library, whose cost benchmarks would measure otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import httpx2

LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"

_ACCEPT: Final = {"accept": "application/json, text/event-stream"}
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_INFO: Final = {"name": "bench", "version": "1"}


async def opened(
    http: httpx2.AsyncClient, url: str, era: str, credentials: Mapping[str, str] = _NONE
) -> dict[str, str]:
    """The headers of a client of this era, after the handshake of the older one."""
    if era == MODERN:
        return {**modern(), **credentials}
    hello = {"protocolVersion": era, "capabilities": {}, "clientInfo": _INFO}
    answer = await http.post(url, json=request(era, "initialize", hello), headers={**_ACCEPT, **credentials})
    headers = {**_ACCEPT, **credentials, "mcp-protocol-version": era}
    if (session := answer.raise_for_status().headers.get("mcp-session-id")) is not None:
        headers["mcp-session-id"] = session
    return headers


def modern() -> dict[str, str]:
    """The headers of a call by a client without a handshake."""
    return {**_ACCEPT, "mcp-protocol-version": MODERN, "mcp-method": "tools/call"}


def request(era: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if era == MODERN:
        prefix = "io.modelcontextprotocol"
        params["_meta"] = {
            f"{prefix}/protocolVersion": era,
            f"{prefix}/clientInfo": _INFO,
            f"{prefix}/clientCapabilities": {},
        }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
