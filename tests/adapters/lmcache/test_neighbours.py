"""Which engine has a prefix on its own, by the coordinator's directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.domain.engine import Tier
from cwm.ports.kv_tier import PrefixKey
from cwm.settings import Engine
from tests.transport.llm.gateway import serving

KEY = PrefixKey("/m", 1, (1, 2, 3), "salt-1")


def instance(name: str, ip: str, port: int) -> dict[str, Any]:
    return {"instance_id": name, "ip": ip, "http_port": port}


def copy(name: str, tier: str = "l1", *, shared: bool = False) -> dict[str, Any]:
    backend = "dram" if tier == "l1" else "valkey"
    return {"instance_id": name, "tier": tier, "backend": backend, "size_bytes": 10, "shared": shared}


@dataclass
class Coordinator:
    instances: list[dict[str, Any]] = field(default_factory=list)
    placements: list[list[dict[str, Any]]] = field(default_factory=list)
    """Of each chunk."""
    lists: int = 0

    def app(self) -> Starlette:
        async def lookup(_request: Request) -> JSONResponse:
            results = [
                {"key": {"chunk_hash_hex": f"h{at}"}, "placements": each}
                for at, each in enumerate(self.placements)
            ]
            return JSONResponse({"chunks": len(results), "results": results})

        async def instances(_request: Request) -> JSONResponse:
            self.lists += 1
            return JSONResponse({"instances": self.instances})

        return Starlette(
            routes=[
                Route("/directory/lookup", lookup, methods=["POST"]),
                Route("/instances", instances),
            ]
        )


@pytest.fixture
async def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
async def url(coordinator: Coordinator) -> AsyncIterator[str]:
    async with serving(coordinator.app()) as url:
        yield url


async def engines(url: str, servers: dict[str, str]) -> list[tuple[frozenset[str], frozenset[Tier]]]:
    """Of each chunk the engines that have it on their own, and its tiers."""
    tier = LmcacheTier(Engine(coordinator_url=url), servers=servers)
    try:
        placements = await tier.lookup(KEY)
        again = await tier.lookup(KEY)
    finally:
        await tier.aclose()
    assert again == placements
    return [(placement.engines, placement.tiers) for placement in placements]


async def test_a_copy_in_memory_or_on_a_disk_of_its_own_is_of_the_engine_beside_that_server(
    coordinator: Coordinator, url: str
) -> None:
    coordinator.instances = [instance("i1", "10.0.0.1", 8081), instance("i2", "10.0.0.2", 8081)]
    coordinator.placements = [
        [copy("i1"), copy("i2"), copy("i1", "l2", shared=True)],
        [copy("i2", "l2"), copy("i1", "l2", shared=True)],
        [copy("i1", "l2", shared=True)],
    ]
    servers = {"one": "http://10.0.0.1:8081", "two": "http://10.0.0.2:8081"}
    assert await engines(url, servers) == [
        (frozenset({"one", "two"}), frozenset({Tier.CPU, Tier.REDIS})),
        (frozenset({"two"}), frozenset({Tier.REDIS})),
        (frozenset(), frozenset({Tier.REDIS})),
    ]
    assert coordinator.lists == 1


async def test_a_server_is_found_by_its_port_where_it_gave_the_coordinator_another_address(
    coordinator: Coordinator, url: str
) -> None:
    coordinator.instances = [instance("i1", "172.17.0.9", 8081), instance("i2", "172.17.0.9", 8082)]
    coordinator.placements = [[copy("i2")]]
    servers = {"one": "http://localhost:8081", "two": "http://localhost:8082"}
    assert [names for names, _ in await engines(url, servers)] == [frozenset({"two"})]


async def test_engines_on_one_server_have_the_same_and_one_engine_needs_no_list(
    coordinator: Coordinator, url: str
) -> None:
    coordinator.instances = [instance("i1", urlsplit(url).hostname or "", 8081)]
    coordinator.placements = [[copy("i1")]]
    server = f"http://{urlsplit(url).hostname}:8081"
    both = {"one": server, "two": server}
    assert [names for names, _ in await engines(url, both)] == [frozenset(both)]
    lists = coordinator.lists
    assert [names for names, _ in await engines(url, {"one": server})] == [frozenset()]
    assert coordinator.lists == lists
