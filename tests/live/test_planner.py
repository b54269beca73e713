"""The planner on the real engine: limits are obeyed, nothing stays locked, and every thaw teaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.kv.speeds import SqlSpeeds
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.vllm.client import VllmEngine
from cwm.domain.engine import engine_key
from cwm.domain.prefix import restorable_tokens, stored_chunks
from cwm.domain.window import Window
from cwm.ports.engine import Generation
from cwm.settings import Engine
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine
from tests.live.talk import Talk, talk, words

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def gateway(live_engine: LiveEngine, database: Path) -> Iterator[LiveGateway]:
    """One that plans, as gateways do unless they are told."""
    with served(live_engine, database, "acme", CWM_THAW_PLAN="auto") as running:
        yield running


@pytest.fixture(scope="module")
def recomputing(live_engine: LiveEngine, gateway: LiveGateway) -> Iterator[LiveGateway]:
    """The same tenant and registry, told to recompute."""
    with served(live_engine, gateway.db_path, gateway.tenant, CWM_THAW_PLAN="recompute") as running:
        yield running


@pytest.fixture(scope="module")
def loading(live_engine: LiveEngine, gateway: LiveGateway) -> Iterator[LiveGateway]:
    """The same tenant and registry, told to load: what a plan makes of a small window depends on the machine."""
    with served(live_engine, gateway.db_path, gateway.tenant, CWM_THAW_PLAN="load") as running:
        yield running


@pytest.fixture
async def loader(loading: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(loading.url, loading.model) as client:
        yield client


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


@pytest.fixture
async def recomputer(recomputing: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(recomputing.url, recomputing.model) as client:
        yield client


@pytest.fixture
async def vllm(live_engine: LiveEngine) -> AsyncIterator[VllmEngine]:
    async with aclosing(VllmEngine(Engine(vllm_url=live_engine.vllm_url))) as engine:
        yield engine


async def frozen(agent: Talk, tokens: int) -> tuple[str, list[int]]:
    session, ids = await agent.fill(words(tokens))
    window = f"w-{uuid4().hex[:10]}"
    await agent.tool("window_freeze", session_id=session, window_name=window)
    return window, ids


@asynccontextmanager
async def registry_of(gateway: LiveGateway) -> AsyncIterator[Database]:
    database = open_database(f"sqlite:///{gateway.db_path}")
    try:
        yield database
    finally:
        await database.dispose()


async def recorded(gateway: LiveGateway, window: str) -> Window:
    async with registry_of(gateway) as database:
        record = await SqlRegistry(database).window(gateway.tenant, window)
    assert record is not None
    return record


async def salt_of(gateway: LiveGateway, window: str) -> str:
    return (await recorded(gateway, window)).cache_salt


async def forget(engine: LiveEngine) -> None:
    await engine.forget_gpu_cache()
    await engine.drop_l1()


@pytest.fixture
async def locked_before(live_engine: LiveEngine) -> int:
    """Read locks of clients that disconnected in other tests, which LMCache keeps until they expire."""
    return await live_engine.read_locks()


async def unlocked(engine: LiveEngine, locked_before: int) -> bool:
    """Whether every read lock is given back; LMCache does so a moment after the answer."""
    async with asyncio.timeout(10):
        while await engine.read_locks() > locked_before:  # noqa: ASYNC110 - polled over HTTP
            await asyncio.sleep(0.05)
    return True


async def test_told_to_recompute_a_thaw_loads_nothing_and_continues_as_before(
    agent: Talk, recomputer: Talk, live_engine: LiveEngine, locked_before: int
) -> None:
    window, ids = await frozen(agent, 700)
    uninterrupted = await agent.complete(ids, max_tokens=32)
    await forget(live_engine)

    thawed = await recomputer.tool("window_thaw", window_name=window)
    continued = await recomputer.complete(ids, session=thawed["session_id"], max_tokens=32)

    receipt = thawed["receipt"]
    assert (receipt["tokens_restored"], receipt["tokens_recomputed"]) == (0, len(ids))
    assert receipt["plan"]["decision"] == "recompute"
    assert (thawed["partial"], thawed.get("warning")) == (False, None)
    assert continued["token_ids"] == uninterrupted["token_ids"]
    assert await unlocked(live_engine, locked_before)


async def test_a_window_that_was_recomputed_loads_again_afterwards(
    loader: Talk, recomputer: Talk, live_engine: LiveEngine, locked_before: int
) -> None:
    window, ids = await frozen(loader, 700)
    await forget(live_engine)
    await recomputer.tool("window_thaw", window_name=window)
    await forget(live_engine)

    thawed = await loader.tool("window_thaw", window_name=window)

    assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), live_engine.chunk_size)
    assert thawed["verification"] == "exact"
    assert await unlocked(live_engine, locked_before)


async def test_a_large_window_is_loaded_and_the_receipt_says_what_that_was_expected_to_take(
    agent: Talk, live_engine: LiveEngine
) -> None:
    window, ids = await frozen(agent, 4000)
    plans = []
    for _ in range(3):
        await forget(live_engine)
        thawed = await agent.tool("window_thaw", window_name=window)
        assert thawed["receipt"]["tokens_restored"] == restorable_tokens(len(ids), live_engine.chunk_size)
        plans.append(thawed["receipt"]["plan"])
    assert [plan["decision"] for plan in plans] == ["load"] * 3
    assert plans[-1]["predicted_ms"] == plans[-1]["alternatives"]["load"] > 0
    assert plans[-1]["alternatives"]["recompute"] > 0
    receipt = thawed["receipt"]
    assert plans[-1]["actual_ms"] == pytest.approx(receipt["prefetch_ms"] + receipt["engine_ms"], abs=0.01)


@pytest.mark.parametrize("chunks", [0, 1, 5])
async def test_a_request_loads_no_more_than_its_limit_in_whole_chunks_and_leaves_no_lock(
    loader: Talk,
    live_engine: LiveEngine,
    gateway: LiveGateway,
    vllm: VllmEngine,
    chunks: int,
    locked_before: int,
) -> None:
    window, ids = await frozen(loader, 700)
    unlimited = await loader.complete(ids)
    await forget(live_engine)
    request = Generation(
        gateway.model,
        tuple(ids),
        await salt_of(gateway, window),
        max_tokens=1,
        sampling={"temperature": 0, "ignore_eos": True},
        load_tokens=chunks * live_engine.chunk_size + 7,
    )

    answer = await vllm.complete(request)

    assert (answer.cached_tokens, answer.loaded_tokens) == (chunks * live_engine.chunk_size,) * 2
    assert list(answer.token_ids) == unlimited["token_ids"]
    assert await unlocked(live_engine, locked_before)
    await live_engine.forget_gpu_cache()
    thawed = await loader.tool("window_thaw", window_name=window)
    assert thawed["receipt"]["blocks_found"] == stored_chunks(len(ids), live_engine.chunk_size)
    assert thawed["verification"] == "exact"


async def test_a_limit_counts_what_the_engine_still_has_itself(
    agent: Talk, live_engine: LiveEngine, gateway: LiveGateway, vllm: VllmEngine, locked_before: int
) -> None:
    window, ids = await frozen(agent, 700)
    salt = await salt_of(gateway, window)
    await forget(live_engine)
    chunk = live_engine.chunk_size
    first = Generation(gateway.model, tuple(ids[: 3 * chunk + 1]), salt, max_tokens=1, load_tokens=0)
    await vllm.complete(first)

    answer = await vllm.complete(
        Generation(gateway.model, tuple(ids), salt, max_tokens=1, load_tokens=5 * chunk)
    )

    assert (answer.cached_tokens, answer.loaded_tokens) == (5 * chunk, 2 * chunk)
    assert await unlocked(live_engine, locked_before)


async def test_requests_with_limits_that_are_broken_off_leave_the_engine_alive(
    agent: Talk, live_engine: LiveEngine, gateway: LiveGateway, vllm: VllmEngine
) -> None:
    window, ids = await frozen(agent, 3000)
    request = Generation(
        gateway.model, tuple(ids), await salt_of(gateway, window), max_tokens=1, load_tokens=1024
    )

    async def is_broken_off(after_seconds: float) -> bool:
        await forget(live_engine)
        try:
            async with asyncio.timeout(after_seconds):
                await vllm.complete(request)
        except TimeoutError:
            return True
        finally:
            await vllm.health()
        return False

    await forget(live_engine)
    begun = time.monotonic()
    await vllm.complete(request)
    took_seconds = time.monotonic() - begun
    broken_off = [await is_broken_off(at / 8 * took_seconds) for at in range(1, 8)]
    # The first may have taken many times what the others take.
    broken_off += [await is_broken_off(took_seconds / 2**at) for at in range(4, 8)]
    assert sum(broken_off) >= 3
    await forget(live_engine)
    assert (await vllm.complete(request)).loaded_tokens == 1024


async def test_what_is_computed_in_place_of_a_load_is_stored(
    agent: Talk, live_engine: LiveEngine, gateway: LiveGateway, vllm: VllmEngine
) -> None:
    window, ids = await frozen(agent, 300)
    salt = await salt_of(gateway, window)
    await live_engine.lose_chunks(ids, salt, keep=0)
    await live_engine.forget_gpu_cache()
    await vllm.complete(Generation(gateway.model, tuple(ids), salt, max_tokens=1, load_tokens=0))
    await live_engine.forget_gpu_cache()

    async with asyncio.timeout(10):
        answer = await vllm.complete(Generation(gateway.model, tuple(ids), salt, max_tokens=1))

    assert answer.cached_tokens == restorable_tokens(len(ids), live_engine.chunk_size)


async def test_every_thaw_is_remembered_by_the_engine_it_ran_on(
    agent: Talk, live_engine: LiveEngine, gateway: LiveGateway
) -> None:
    window, _ = await frozen(agent, 2000)
    await forget(live_engine)
    took_ms = (await agent.tool("window_thaw", window_name=window))["receipt"]["plan"]["actual_ms"]
    engine = engine_key((await recorded(gateway, window)).identity)
    async with registry_of(gateway) as database, asyncio.timeout(20):
        while True:
            known = await SqlSpeeds(database).speeds(engine)
            if took_ms in [round(o.ms, 3) for o in known.observations]:
                return
            await asyncio.sleep(0.05)
