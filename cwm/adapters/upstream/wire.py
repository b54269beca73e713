"""Additions to the SDK's client: negotiates the era, sends the caller's capabilities, and reports a lost connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import ValidationError

from cwm.adapters.upstream.http import PENDING, fault_of
from cwm.ports.upstream import UpstreamAwayError, UpstreamBusyError


class Wire(JSONRPCDispatcher[Any]):
    """The SDK's dispatcher; also sends the caller's capabilities, and sets ``ended`` when the connection ends."""

    def __init__(self, read: Any, write: Any, ended: asyncio.Event) -> None:
        super().__init__(read, write)
        self._connection_ended = ended

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, *args: Any, **options: Any
    ) -> dict[str, Any]:
        try:
            result = await super().send_raw_request(method, _with_capabilities(params), *args, **options)
            return _with_content(result) if method == "tools/call" else result
        finally:
            # Waiting requests fail before ``run`` returns: set it now, so that they are not retried here.
            if self._closed:
                self._connection_ended.set()

    async def run(self, *args: Any, **options: Any) -> None:
        try:
            await super().run(*args, **options)
        finally:
            self._connection_ended.set()


async def negotiate(client: ClientSession, resume: str | None, probe_seconds: float) -> None:
    """Use 2026-07-28 if the upstream supports it, otherwise the handshake; ``resume`` replaces both."""
    if resume is not None:
        client.adopt(types.InitializeResult.model_validate(json.loads(resume)["initialize"]))
        return
    try:
        async with asyncio.timeout(probe_seconds):
            await client.discover()
    except MCPError as error:
        if isinstance(fault_of(error), UpstreamAwayError | UpstreamBusyError):
            raise
        await _shake_hands(client)
    except (RuntimeError, TimeoutError, ValidationError):
        await _shake_hands(client)


async def _shake_hands(client: ClientSession) -> None:
    """Initialize. An upstream that was slow to start may have accepted the probe after all: then discover again."""
    try:
        await client.initialize()
    except MCPError as error:
        if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await client.discover()


def without_capabilities(params: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    meta = dict(params.get("_meta") or {})
    capabilities = meta.pop(types.CLIENT_CAPABILITIES_META_KEY, None)
    if capabilities is None:
        return dict(params), None
    others = {name: value for name, value in params.items() if name != "_meta"}
    return ({**others, "_meta": meta} if meta else others), capabilities


def _with_content(result: dict[str, Any]) -> dict[str, Any]:
    """Many clients, unlike the SDK, take a result that has structured content alone."""
    return result if "content" in result or "structuredContent" not in result else {"content": [], **result}


def _with_capabilities(params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Replace our capabilities with the caller's: the SDK sends them to a 2026-07-28 upstream with every request."""
    pending, meta = PENDING.get(), (params or {}).get("_meta") or {}
    if params is None or pending is None or not pending.capabilities:
        return params
    if types.CLIENT_CAPABILITIES_META_KEY not in meta:
        return params
    return {**params, "_meta": {**meta, types.CLIENT_CAPABILITIES_META_KEY: dict(pending.capabilities)}}
