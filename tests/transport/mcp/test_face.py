"""Whom a tool acts for, whichever way its call came."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2
import pytest
from fastmcp import Client
from mcp import MCPError

from cwm.domain.errors import SecurityError
from cwm.domain.principal import Principal
from tests.contracts.nouns import freeze
from tests.transport.mcp.gateway import Gateway, faced, serving


async def test_a_call_without_http_is_authenticated_with_no_headers(gateway: Gateway, era: str) -> None:
    await freeze(gateway.parts.base.registry, f"w-{era}", tenant="acme")
    face = faced(gateway.parts)
    async with Client(face, mode=era) as client:
        answer = await client.call_tool("window_status", {"window_name": f"w-{era}"})
        assert answer.structured_content is not None
        assert answer.structured_content["id"] == f"w-{era}"


class NobodyEnters:
    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        raise SecurityError("Nobody may enter.", headers=len(headers))


async def test_who_is_refused_without_http_is_told_the_code(gateway: Gateway, era: str) -> None:
    face = faced(gateway.parts, identity=NobodyEnters())
    async with Client(face, mode=era) as client:
        answer = await client.call_tool("window_list", {}, raise_on_error=False)
        with pytest.raises(MCPError) as refused:
            await client.read_resource("cwm://windows")
    assert answer.is_error
    assert answer.meta is not None
    assert answer.meta["dev.cwm/error"]["code"] == "CWM-9002"
    assert refused.value.error.data["code"] == "CWM-9002"


async def test_served_without_the_session_layer_no_tool_acts_for_anybody(gateway: Gateway) -> None:
    face = faced(gateway.parts)
    async with serving(face.http_app(path="/mcp", stateless_http=True)) as url:
        async with Client(f"{url}/mcp", mode="2026-07-28") as client:
            answer = await client.call_tool("window_list", {}, raise_on_error=False)
        assert answer.meta is not None
        assert answer.meta["dev.cwm/error"]["code"] == "CWM-9001"
        async with httpx2.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{url}/mcp")).status_code == 405
