"""What orchestrators and Prometheus read, while the engine is down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette

from cwm.adapters.vllm.client import VllmEngine
from cwm.services.health.inspect import Inspect
from cwm.settings import Engine
from cwm.transport.endpoints.health import routes
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.transport.mcp.gateway import Gateway, serving
from tests.transport.mcp.gateway import gateway as running_gateway

pytestmark = pytest.mark.slow


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path) as running:
        yield running


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False) as client:
        yield client


async def test_the_process_is_healthy_whatever_is_down(http: httpx2.AsyncClient) -> None:
    response = await http.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "healthy"})


async def test_without_its_engine_the_gateway_is_not_ready_and_says_since_when(
    http: httpx2.AsyncClient,
) -> None:
    before = datetime.now(UTC)
    first, second = await http.get("/readyz"), await http.get("/readyz")
    assert first.status_code == second.status_code == 503
    assert first.headers["cache-control"] == "no-store"
    components = {c["name"]: c for c in first.json()["components"]}
    assert {name: c["status"] for name, c in components.items()} == {
        "kv_store": "unhealthy",
        "vllm": "unhealthy",
        "registry": "healthy",
        "coordinator": "unhealthy",
    }
    assert "since" not in components["registry"]
    since = datetime.fromisoformat(components["vllm"]["since"])
    assert abs((since - before).total_seconds()) < 10
    assert [c.get("since") for c in second.json()["components"]] == [
        c.get("since") for c in first.json()["components"]
    ]


async def test_without_its_cache_the_gateway_is_ready(gateway: Gateway, tmp_path: Path) -> None:
    async with fake_vllm() as vllm:
        engine = VllmEngine(Engine(vllm_url=vllm.url))
        inspect = gateway.parts.services.inspect
        answering = Inspect(
            inspect.registry,
            engine,
            inspect.kv_tier,
            inspect.clock,
            inspect.version,
            inspect.started,
            inspect.operators,
            inspect.cache_fault,
            inspect.upstreams,
            inspect.reuse,
            inspect.audit_fault,
        )
        app = Starlette(routes=list(routes(answering, gateway.parts.base.meter)))
        async with serving(app) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as http:
            response = await http.get("/readyz")
        await engine.aclose()
    assert (response.status_code, response.json()["status"]) == (200, "degraded")


async def test_metrics_are_prometheus_text(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    gateway.parts.base.meter.event("thaw_without_lmcache")
    response = await http.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'cwm_events_total{event="thaw_without_lmcache"} 1.0' in response.text
