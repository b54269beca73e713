"""Requests of MCP 2026-07-28, which knows no handshake. Importing a client library takes longer than most commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2

from cwm import __version__

PROTOCOL: Final = "2026-07-28"
_META: Final = "io.modelcontextprotocol"

OnProgress = Callable[[str], None]
"""Gets the words of each notification of progress that has some."""


class McpError(Exception):
    """The server refused the request. ``data`` is that of the JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message", "it refused without a reason.")))
        self.data = error.get("data")


class OtherAnswerError(Exception):
    """What came is no answer of MCP."""

    def __init__(self) -> None:
        super().__init__("what it sent is no answer of MCP.")


async def ask(
    http: httpx2.AsyncClient,
    url: str,
    method: str,
    params: Mapping[str, Any],
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """The result of one request. Raises McpError, OtherAnswerError, or httpx2.TransportError when the connection breaks."""
    meta: dict[str, Any] = {
        f"{_META}/protocolVersion": PROTOCOL,
        f"{_META}/clientInfo": {"name": "cwm", "version": __version__},
        f"{_META}/clientCapabilities": {},
    }
    if on_progress is not None:
        meta["progressToken"] = 1
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": PROTOCOL,
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    async with http.stream("POST", url, json=request, headers=headers) as response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return _result(_message(await response.aread()))
        async for event in httpx2.EventSource(response, max_event_size=None):
            message = _message(event.data)
            words = (message.get("params") or {}).get("message")
            if message.get("method") == "notifications/progress" and on_progress is not None and words:
                on_progress(str(words))
            elif "method" not in message:
                return _result(message)
    raise OtherAnswerError


def _message(text: str | bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError as failed:
        raise OtherAnswerError from failed
    if not isinstance(message, dict):
        raise OtherAnswerError
    return message


def _result(message: dict[str, Any]) -> dict[str, Any]:
    error, result = message.get("error"), message.get("result")
    if isinstance(error, dict):
        raise McpError(error)
    if not isinstance(result, dict):
        raise OtherAnswerError
    return result
