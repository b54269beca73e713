"""A request that its client gives up ends, and what it asked of an upstream as well."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cwm.settings import Shared
from tests.eventually import eventually
from tests.transport.mcp.gateway import gateway
from tests.transport.mcp.upstream_hosts import Host
from tests.transport.mcp.upstreams.test_upstreams import ERAS, fronted, host
from tests.transport.mcp.wire import Wire, wired

__all__ = ["host"]

pytestmark = pytest.mark.slow


@ERAS
async def test_a_call_that_its_client_gives_up_ends_at_the_upstream(
    tmp_path: Path, era: str, host: Host
) -> None:
    async with fronted(tmp_path, era, host.spec("notes")) as (agent, running):
        calling = asyncio.create_task(agent.call("notes_hold"))
        await host.seen.began.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        async with asyncio.timeout(30):
            await host.seen.given_up.wait()
        link = running.parts.agent_side.upstreams._links["notes"]
        await eventually(lambda: link._busy == 0)
        assert (await agent.call("notes_echo", {"message": "still"})).text == "still"


@ERAS
async def test_any_replica_hears_that_a_call_is_given_up_and_only_its_own_session_can(
    tmp_path: Path, redis_url: str, host: Host
) -> None:
    shared = Shared(shared_store_url=redis_url)
    async with (
        gateway(tmp_path, shared=shared, upstreams=(host.spec("notes"),)) as one,
        gateway(tmp_path, shared=shared) as other,
        wired(one.url) as here,
        wired(other.url) as there,
    ):
        mine, another = await here.session(), await there.session()
        calling = asyncio.create_task(_hold(here, mine, 7))
        await host.seen.began.wait()
        for request_id, session in ((7, another), (8, mine), ("7", mine)):
            assert not calling.done()
            assert (await _give_up(there, session, request_id)).status_code == 202
        answer = await calling
        assert (answer["id"], answer["error"]["code"]) == (7, -32800)
        async with asyncio.timeout(30):
            await host.seen.given_up.wait()


async def test_what_gives_nothing_up_is_accepted_and_harmless(tmp_path: Path) -> None:
    async with gateway(tmp_path) as running, wired(running.url) as wire:
        session = await wire.session()
        for request_id in (None, 99, {"not": "an id"}):
            assert (await _give_up(wire, session, request_id)).status_code == 202
        assert (await wire.ask(session, "tools/list")).status_code == 200


async def _hold(wire: Wire, session: str, request_id: int) -> dict[str, Any]:
    params = {"name": "notes_hold", "arguments": {}}
    body = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
    answer = await wire.post(body, mcp_session_id=session)
    return next(
        dict(json.loads(line.removeprefix("data:")))
        for line in answer.text.splitlines()
        if line.startswith("data:")
    )


async def _give_up(wire: Wire, session: str, request_id: object) -> httpx2.Response:
    params = {} if request_id is None else {"requestId": request_id}
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    return await wire.post(body, mcp_session_id=session)
