"""Several LMCache servers, each beside an engine, on one coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.domain.errors import EngineConnectionError, EngineResponseError
from cwm.ports.kv_tier import AttachedModel, PrefixKey
from cwm.settings import Engine
from tests.postgres import free_port
from tests.transport.llm.gateway import serving

pytestmark = pytest.mark.slow

NOBODY = f"http://127.0.0.1:{free_port()}"
KEY = PrefixKey("/model", 1, tuple(range(32)), "salt", "one")


@dataclass
class Server:
    """An LMCache server and, beside it, a coordinator that knows ``instances``."""

    version: str
    instances: list[dict[str, object]] = field(default_factory=list)
    prefetches: int = 0
    refills: int = 0
    refills_answer: int = 202
    dropped: list[str] = field(default_factory=list)
    attached: dict[str, object] = field(default_factory=dict)
    """What ``/status`` says of attached engines."""
    refused: str = ""
    """An instance that the coordinator does not reach."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/status", self._status),
                Route("/version", lambda _: JSONResponse(self.version)),
                Route("/config/adapters", lambda _: JSONResponse({"adapters": [{"type_name": "valkey"}]})),
                Route("/instances", lambda _: JSONResponse({"instances": self.instances})),
                Route("/cache/prefetches", self._prefetch, methods=["POST"]),
                Route("/cache/delete", self._delete, methods=["POST"]),
            ]
        )

    async def _status(self, _: Request) -> JSONResponse:
        return JSONResponse(
            {"chunk_size": 32, "hash_algorithm": "blake3", "storage_manager": {}, **self.attached}
        )

    async def _prefetch(self, request: Request) -> JSONResponse:
        self.prefetches += 1
        if (await request.json()).get("target_tier") == "l2":
            self.refills += 1
            return JSONResponse({"detail": "unsupported prefetch direction"}, self.refills_answer)
        return JSONResponse({"chunks": 0, "status": "noop"})

    async def _delete(self, request: Request) -> JSONResponse:
        instance = (await request.json())["instance_id"]
        if instance == self.refused:
            return JSONResponse({"detail": f"delete to '{instance}' failed"}, 502)
        self.dropped.append(instance)
        return JSONResponse({"status": "deleted"})


@pytest.fixture
def one() -> Server:
    return Server("0.5.1")


@pytest.fixture
def two() -> Server:
    return Server("0.5.2")


@pytest.fixture
async def tier(one: Server, two: Server) -> AsyncIterator[LmcacheTier]:
    async with AsyncExitStack() as running:
        urls = [await running.enter_async_context(serving(each.app())) for each in (one, two)]
        for number, url in enumerate(urls, 1):
            instance = {
                "instance_id": f"cwm-{number}",
                "ip": "127.0.0.1",
                "http_port": int(url.rsplit(":")[-1]),
            }
            two.instances.append(instance)
        settings = Engine(coordinator_url=urls[1])
        tier = LmcacheTier(settings, servers=dict(zip(("one", "two"), urls, strict=True)))
        running.push_async_callback(tier.aclose)
        yield tier


async def version(tier: LmcacheTier) -> str:
    facts = await tier.facts()
    assert facts is not None
    return facts.version


async def test_the_facts_of_the_cache_are_those_of_the_first_server_that_answers(
    tier: LmcacheTier, two: Server
) -> None:
    assert await version(tier) == "0.5.1"
    servers = {"gone": NOBODY, "two": f"http://127.0.0.1:{two.instances[1]['http_port']}"}
    tier.configure(servers)
    assert await version(tier) == "0.5.2"

    tier.configure({"gone": NOBODY})
    with pytest.raises(EngineConnectionError):
        await tier.facts()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("non_cuda_context_meta", {"block_size": 64}),
        # As an LMCache server beside a GPU wrote it: a group for all layers of one kind.
        (
            "cache_context_meta",
            {"kv_cache_layout": {"num_layers": 30, "kernel_groups": [{"tokens_per_block": 64}]}},
        ),
    ],
)
async def test_a_gpu_engine_s_block_size_is_read_as_well_as_a_cpu_engine_s(
    tier: LmcacheTier, one: Server, name: str, sizes: dict[str, object]
) -> None:
    one.attached = {name: {"7": {"model_name": "/model", "world_size": 1, **sizes}}}
    facts = await tier.facts()
    assert facts is not None
    assert facts.attached == (AttachedModel("/model", 1, 64),)


async def test_beside_an_engine_the_facts_are_those_of_its_own_server(tier: LmcacheTier, two: Server) -> None:
    assert await version(tier.beside("two")) == "0.5.2"
    tier.configure({"gone": NOBODY, "two": f"http://127.0.0.1:{two.instances[1]['http_port']}"})
    with pytest.raises(EngineConnectionError):
        await tier.beside("gone").facts()


async def test_what_a_server_told_is_known_of_the_whole_cache(tier: LmcacheTier) -> None:
    assert tier.expected_hashes(KEY) is None
    await tier.beside("two").facts()
    assert len(tier.expected_hashes(KEY) or ()) == 1


async def test_the_cache_on_an_instance_is_read_through_that_instance(
    tier: LmcacheTier, one: Server, two: Server
) -> None:
    await (await tier.on("cwm-2")).prefetch(KEY)
    assert (one.prefetches, two.prefetches) == (0, 1)
    await tier.prefetch(KEY)
    assert (one.prefetches, two.prefetches) == (1, 1)


async def test_a_server_that_is_gone_has_nothing_in_l1_and_one_that_is_there_must_drop_it(
    tier: LmcacheTier, two: Server
) -> None:
    two.refused = "cwm-1"
    with pytest.raises(EngineResponseError, match="delete to 'cwm-1' failed"):
        await tier.drop_l1(KEY)
    two.instances[0]["http_port"] = free_port()
    await tier.drop_l1(KEY)
    assert two.dropped == ["cwm-2"]


async def test_the_server_beside_the_engine_of_a_prefix_refills_the_tiers_below_it(
    tier: LmcacheTier, one: Server, two: Server
) -> None:
    await tier.refill(KEY)
    await tier.refill(replace(KEY, engine="two"))
    assert (one.refills, two.refills) == (1, 1)


async def test_a_server_that_only_loads_refills_nothing_and_any_other_fault_is_one(
    tier: LmcacheTier, one: Server
) -> None:
    one.refills_answer = 400
    await tier.refill(KEY)
    one.refills_answer = 503
    with pytest.raises(EngineResponseError, match="503"):
        await tier.refill(KEY)
