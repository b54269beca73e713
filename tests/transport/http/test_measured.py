"""Requests as the whole gateway counts them, and how many series that can ever make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, insert

from cwm.adapters.sql.rows import session_values, window_values
from cwm.adapters.sql.tables.sessions import sessions, snapshots
from cwm.adapters.sql.tables.windows import windows
from cwm.domain.prefix import digest
from cwm.ports.meter import Sample
from cwm.transport.http.measured import Measured
from tests.cli.command import serving as serving_process
from tests.contracts.nouns import IDS, a_session, a_window
from tests.transport.mcp.gateway import MODERN, Gateway, assembled, fastmcp_agent, serving
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.wire import MODERN_META, Wire, wired

pytestmark = pytest.mark.slow

PATHS = frozenset({"/mcp", "/healthz", "/readyz", "/metrics"})
SERIES = "cwm_http_", "cwm_mcp_", "cwm_tool_", "cwm_sessions", "cwm_windows"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """One whose requests are measured as ``create_app`` has them measured."""
    async with running_gateway(tmp_path) as running:
        measured = Measured(assembled(running.parts, running.face), running.parts.base.meter, PATHS)
        async with serving(measured, running.face.end_streams) as url:
            yield Gateway(url, running.parts, running.face)


@pytest.fixture
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    async with wired(gateway.url) as one:
        yield one


def series(gateway: Gateway) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {
        (s.name, frozenset(s.labels.items()))
        for s in gateway.parts.base.meter.samples()
        if s.name.startswith(SERIES)
    }


def total(samples: list[Sample], name: str, **labels: str) -> float:
    return sum(s.value for s in samples if s.name == name and labels.items() <= dict(s.labels).items())


async def test_calls_are_counted_by_face_method_tool_era_and_outcome(gateway: Gateway) -> None:
    for era in ("legacy", MODERN):
        async with fastmcp_agent(gateway.url, era) as agent:
            await agent.call("window_list")
            await agent.call("window_status", {"window_name": "nothing"})
            await agent.call("session_create")
    samples = gateway.parts.base.meter.samples()
    for era in ("handshake", "modern"):
        for tool, outcome in (
            ("window_list", "success"),
            ("window_status", "refused"),
            ("session_create", "error"),
        ):
            assert total(samples, "cwm_tool_calls_total", tool=tool, era=era, outcome=outcome) == 1
        assert total(samples, "cwm_mcp_requests_total", method="tools/call", era=era) == 3
    assert total(samples, "cwm_mcp_requests_total", method="initialize", era="handshake") == 1
    assert total(samples, "cwm_mcp_errors_total", code="CWM-2002") == 2
    assert total(samples, "cwm_mcp_errors_total", code="CWM-5001") == 2
    assert total(samples, "cwm_tool_call_duration_seconds_count", tool="window_list") == 2
    assert total(samples, "cwm_http_requests_total", face="mcp", route="POST /mcp", status="2xx") >= 8
    assert total(samples, "cwm_mcp_requests_in_flight") == 0


async def test_a_request_that_is_no_tool_call_fails_in_its_method(gateway: Gateway, wire: Wire) -> None:
    session = await wire.session(x_tenant="a")
    await wire.post(
        {"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {}}, mcp_session_id=session, x_tenant="a"
    )
    unknown = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "no_such", "arguments": {}},
    }
    await wire.post(unknown, mcp_session_id=session, x_tenant="a")
    samples = gateway.parts.base.meter.samples()
    assert total(samples, "cwm_mcp_requests_total", method="other", outcome="refused") == 1
    assert total(samples, "cwm_tool_calls_total", tool="other", outcome="refused") == 1


async def test_an_open_stream_is_in_flight_and_its_length_spoils_no_latency(
    gateway: Gateway, wire: Wire
) -> None:
    session = await wire.session(x_tenant="a")
    async with wire.stream(session, x_tenant="a"):
        samples = gateway.parts.base.meter.samples()
        assert total(samples, "cwm_http_requests_in_flight", route="GET /mcp") == 1
    async with wire.listen({"toolsListChanged": True}, x_tenant="a"):
        assert total(gateway.parts.base.meter.samples(), "cwm_mcp_requests_in_flight") == 1
    async with asyncio.timeout(10):
        while total(samples, "cwm_http_requests_in_flight", face="mcp"):
            await wire.http.get("/healthz")
            samples = gateway.parts.base.meter.samples()
    assert not [
        s for s in samples if "subscriptions/listen" in s.labels.values() and s.name.endswith("_bucket")
    ]
    assert not [
        s for s in samples if s.name.endswith("_bucket") and s.labels.get("route", "").endswith("/mcp")
    ]


async def test_a_thousand_of_everything_that_callers_choose_adds_no_series(
    gateway: Gateway, wire: Wire
) -> None:
    """Paths, methods, tools, sessions, tenants and windows, each never seen before."""

    async def asked(number: int) -> None:
        new = uuid4().hex
        await wire.http.request(("GET", "PROPFIND")[number % 2], (f"/{new}", f"/v1/{new}")[number % 2])
        await wire.post({"jsonrpc": "2.0", "id": 1, "method": new}, mcp_session_id=new, x_tenant=new)
        tool = (new, f"{new}_tool")[number % 2]
        params = {"_meta": MODERN_META, "name": tool, "arguments": {}}
        await wire.post(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
            mcp_protocol_version=MODERN,
            mcp_method="tools/call",
            mcp_name=tool,
            x_tenant=new,
        )

    async def ask(count: int) -> None:
        await gateway.parts.base.database.write(partial(filled, count=count))
        for number in range(count):
            await asked(number)
        await wire.http.get("/metrics")

    await ask(2)
    before = series(gateway)
    assert before >= {("cwm_windows", frozenset({("durability", "pending")}))}
    await ask(1000)
    assert series(gateway) == before
    samples = gateway.parts.base.meter.samples()
    assert total(samples, "cwm_http_requests_total", route="other", status="4xx") == 1002
    assert total(samples, "cwm_tool_calls_total", tool="other", outcome="refused") == 1002
    assert total(samples, "cwm_agent_sessions") >= 1002


def filled(connection: Connection, count: int) -> None:
    """So many new tenants, each with a session and a window."""
    names = [uuid4().hex for _ in range(count)]
    held = {"token_count": len(IDS), "packed": b"", "id": digest(IDS)}
    connection.execute(insert(snapshots), [{"tenant": name, **held} for name in names])
    made = [session_values(a_session(name, name)) for name in names]
    connection.execute(insert(sessions), made)
    frozen = [{"uid": n, **window_values(a_window(n, n, session_id=n))} for n in names]
    connection.execute(insert(windows), frozen)


def test_each_replica_counts_its_own_and_all_tell_the_same_of_what_they_share(tmp_path: Path) -> None:
    """As Prometheus reads them: one process, one target."""
    with serving_process(tmp_path) as (one, _), serving_process(tmp_path) as (other, _):
        for url, times in ((one, 3), (other, 5)):
            for _ in range(times):
                httpx2.get(f"{url}/healthz", trust_env=False)
        told = [httpx2.get(f"{url}/metrics", trust_env=False).text for url in (one, other)]
    values = [
        {
            (s.name, frozenset(s.labels.items())): s.value
            for f in text_string_to_metric_families(text)
            for s in f.samples
        }
        for text in told
    ]
    healthz = (
        "cwm_http_requests_total",
        frozenset({"face": "http", "route": "GET /healthz", "status": "2xx"}.items()),
    )
    assert [each[healthz] for each in values] == [3, 5]
    shared = [
        {k: v for k, v in each.items() if k[0] in {"cwm_sessions", "cwm_windows", "cwm_component_up"}}
        for each in values
    ]
    assert shared[0] == shared[1]
    assert len(shared[0]) >= 10
