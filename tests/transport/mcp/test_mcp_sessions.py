"""``Mcp-Session-Id``: minted at the handshake, bound to who shook hands, ended by DELETE."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from cwm.domain.principal import Principal
from tests.transport.mcp.gateway import Gateway, fastmcp_agent

LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True, slots=True)
class Wire:
    http: httpx2.AsyncClient

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        sent = {"accept": "application/json, text/event-stream", **dashed(headers)}
        return await self.http.post("/mcp", json=body, headers=sent)

    async def initialize(self, **headers: str) -> httpx2.Response:
        return await self.post(initialize(), **headers)

    async def session(self, **headers: str) -> str:
        return (await self.initialize(**headers)).raise_for_status().headers["mcp-session-id"]

    async def end(self, **headers: str) -> httpx2.Response:
        return await self.http.delete("/mcp", headers=dashed(headers))


@pytest.fixture
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as http:
        yield Wire(http)


def dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def initialize(**more: Any) -> dict[str, Any]:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {**params, **more}}


async def test_a_handshake_gets_an_id_of_its_own_that_opens_the_door(wire: Wire) -> None:
    first, second = await wire.session(), await wire.session()
    assert first != second
    assert first.isascii()
    assert len(first) >= 32
    assert (await wire.post(LIST, mcp_session_id=first)).status_code == 200


async def test_a_request_without_an_id_is_400(wire: Wire) -> None:
    for body in (LIST, [initialize()], "initialize", {"method": ["initialize"]}):
        response = await wire.post(body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == -32600


@pytest.mark.parametrize("unknown", ["0" * 32, "x", "../../etc", "x" * 8000])
async def test_an_unknown_id_is_404(wire: Wire, unknown: str) -> None:
    response = await wire.post(LIST, mcp_session_id=unknown)
    assert response.status_code == 404
    assert response.json() == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": "Session not found: initialize again."},
    }
    assert (await wire.end(mcp_session_id=unknown)).status_code == 404


async def test_an_id_is_of_no_use_to_another_principal_and_survives_the_attempt(wire: Wire) -> None:
    mine = await wire.session(x_tenant="a")
    assert (await wire.post(LIST, mcp_session_id=mine, x_tenant="b")).status_code == 404
    assert (await wire.end(mcp_session_id=mine, x_tenant="b")).status_code == 404
    assert (await wire.post(LIST, mcp_session_id=mine, x_tenant="a")).status_code == 200


async def test_delete_ends_a_session(wire: Wire) -> None:
    session = await wire.session()
    assert (await wire.end(mcp_session_id=session)).status_code == 204
    assert (await wire.post(LIST, mcp_session_id=session)).status_code == 404
    assert (await wire.end()).status_code == 400


async def test_an_initialize_is_not_read_past_its_limit(wire: Wire) -> None:
    small = await wire.post(initialize(capabilities={"experimental": {"x": {"y": "z" * 60_000}}}))
    assert small.status_code == 200
    large = await wire.post(initialize(capabilities={"experimental": {"x": {"y": "z" * 70_000}}}))
    assert large.status_code == 413
    assert "mcp-session-id" not in large.headers


async def test_a_refused_initialize_opens_no_session(gateway: Gateway, wire: Wire) -> None:
    before = len(gateway.sessions._kept)
    assert (await wire.initialize(accept="text/html")).status_code == 406
    assert (await wire.initialize(x_tenant="nobody")).status_code == 403
    assert len(gateway.sessions._kept) == before


async def test_a_later_client_has_no_session_and_a_made_up_one_changes_nothing(wire: Wire) -> None:
    legacy = await wire.session()
    body = {**LIST, "params": {"_meta": MODERN_META}}
    for session in ("made-up", legacy):
        response = await wire.post(
            body, mcp_protocol_version="2026-07-28", mcp_method="tools/list", mcp_session_id=session
        )
        assert response.status_code == 200
        assert "mcp-session-id" not in response.headers
    assert (await wire.end(mcp_protocol_version="2026-07-28", mcp_session_id=legacy)).status_code == 405
    assert (await wire.post(LIST, mcp_session_id=legacy)).status_code == 200


async def test_who_may_not_enter_is_told_so_in_either_era(wire: Wire) -> None:
    for version in ({}, {"mcp_protocol_version": "2026-07-28"}):
        response = await wire.post(LIST, x_tenant="nobody", **version)
        assert response.status_code == 403
        assert response.json()["error"]["data"]["code"] == "CWM-9002"


async def test_foreign_hosts_and_origins_are_refused(wire: Wire) -> None:
    assert (await wire.initialize(host="evil.test")).status_code == 421
    assert (await wire.initialize(origin="https://evil.test")).status_code == 403
    assert (await wire.initialize(host="cwm.test", origin="https://app.test")).status_code == 200


async def test_a_client_of_the_handshake_era_ends_its_session_when_it_leaves(gateway: Gateway) -> None:
    before = set(gateway.sessions._kept)
    async with fastmcp_agent(gateway.url, "legacy") as agent:
        await agent.call("session_list")
        (session,) = set(gateway.sessions._kept) - before
        assert gateway.sessions._kept[session].owner == Principal(agent.tenant, "agent")
    assert session not in gateway.sessions._kept
