"""Values that were changed where they are stored never reach an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.prefix import restorable_tokens
from cwm_bench.harness.damage import (
    Copies,
    Forger,
    InRedis,
    LowerTier,
    OnDisk,
    copies,
    flipped,
    truncated,
    zeroed,
)
from tests.live.conftest import LiveGateway
from tests.live.engine import LiveEngine
from tests.live.talk import Talk, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


@pytest.fixture
async def redis(live_engine: LiveEngine) -> AsyncIterator[Redis]:
    async with Redis.from_url(live_engine.redis_url) as client:
        yield client


async def freeze(agent: Talk, live_engine: LiveEngine) -> tuple[str, list[int], list[str]]:
    """A window, its ids, and its chunks' hashes in order."""
    session, ids = await agent.fill(words(400))
    window = f"w_{uuid4().hex[:10]}"
    await agent.tool("window_freeze", session_id=session, window_name=window)
    return window, ids, chunk_hashes(ids, live_engine.chunk_size)


async def only_tier(
    kind: str, redis: Redis, live_engine: LiveEngine, hashes: list[str]
) -> tuple[LowerTier, Copies]:
    """That tier and what it holds of these chunks; the other one has lost its copies."""
    tiers: dict[str, LowerTier] = {"redis": InRedis(redis), "disk": OnDisk(live_engine.storage_path / "kv")}
    lost = tiers["disk" if kind == "redis" else "redis"]
    await lost.remove((await copies(lost, hashes)).names)
    return tiers[kind], await copies(tiers[kind], hashes)


@pytest.mark.parametrize("kind", ["redis", "disk"])
@pytest.mark.parametrize("change", [flipped, zeroed, truncated])
async def test_a_changed_value_is_computed_again(
    agent: Talk, live_engine: LiveEngine, redis: Redis, kind: str, change: Callable[[bytes], bytes]
) -> None:
    window, ids, hashes = await freeze(agent, live_engine)
    expected = await agent.complete(ids, max_tokens=16)
    tier, stored = await only_tier(kind, redis, live_engine, hashes)
    await tier.write(stored.names[3], change(stored.values[3]))
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()

    thawed = await agent.tool("window_thaw", window_name=window)
    continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=16)

    assert thawed["partial"] is True
    assert thawed["receipt"]["tokens_restored"] < restorable_tokens(len(ids), live_engine.chunk_size)
    assert continued["token_ids"] == expected["token_ids"]


@pytest.mark.parametrize("kind", ["redis", "disk"])
@pytest.mark.parametrize("donor", ["the same window", "another window"])
async def test_a_value_under_another_chunks_name_is_computed_again(
    agent: Talk, live_engine: LiveEngine, redis: Redis, kind: str, donor: str
) -> None:
    window, ids, hashes = await freeze(agent, live_engine)
    _, _, strangers = await freeze(agent, live_engine)
    expected = await agent.complete(ids, max_tokens=16)
    tier, stored = await only_tier(kind, redis, live_engine, [*hashes, *strangers])
    taken = 5 if donor == "the same window" else len(hashes)
    await tier.write(stored.names[3], stored.values[taken])
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()

    thawed = await agent.tool("window_thaw", window_name=window)
    continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=16)

    assert thawed["partial"] is True
    assert thawed["receipt"]["tokens_restored"] < restorable_tokens(len(ids), live_engine.chunk_size)
    assert continued["token_ids"] == expected["token_ids"]


async def durable(agent: Talk, window: str) -> None:
    async with asyncio.timeout(60):
        while (await agent.tool("window_status", window_name=window))["durability"] != "durable":
            pass


async def plant(live_engine: LiveEngine, redis: Redis, hashes: list[str], at: int, other: int) -> None:
    """In place of one chunk's KV that of another, sealed under its name."""
    tier, stored = await only_tier("redis", redis, live_engine, hashes)
    forger = Forger(live_engine.storage_path / "kv.keys")
    wrong = forger.forged(stored.values[other], stored.names[other], stored.names[at])
    await tier.write(stored.names[at], wrong)
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()


async def test_wrong_kv_that_opens_is_found_deleted_where_it_is_and_never_continued_from(
    agent: Talk, live_engine: LiveEngine, redis: Redis
) -> None:
    window, ids, hashes = await freeze(agent, live_engine)
    expected = await agent.complete(ids, max_tokens=16)
    bystander, others = await agent.fill(words(400))
    await plant(live_engine, redis, hashes, 3, 5)
    await agent.complete(others, session=bystander)

    thawed = await agent.tool("window_thaw", window_name=window)
    continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=16)
    without_a_session = await agent.complete(ids, max_tokens=16)

    assert thawed["verification"] == "mismatch"
    evidence = thawed["receipt"]["verification"]
    assert (evidence["compared_with"], evidence["canary_origin"]) == ("canary_and_control", "computed")
    assert evidence["places_differing"] == evidence["tokens_compared"]
    assert evidence["control"]["canary_from_computed"] < 0.001 < evidence["control"]["restored_from_computed"]
    assert (thawed["partial"], thawed["receipt"]["tokens_restored"]) == (True, 0)
    assert "discarded" in thawed["warning"]
    assert continued["token_ids"] == expected["token_ids"]
    assert without_a_session["token_ids"] == expected["token_ids"]
    # The tenant keeps its salt: what others had cached is cached.
    again = await agent.complete(others, session=bystander)
    assert (
        again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(others) - 2 * live_engine.chunk_size
    )

    await durable(agent, window)
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()
    restored = await agent.tool("window_thaw", window_name=window)
    assert (restored["verification"], restored["partial"]) == ("exact", False)
    assert (await agent.complete(ids, session=restored["session_id"], max_tokens=16))[
        "token_ids"
    ] == expected["token_ids"]


async def test_a_canary_that_was_recorded_on_loaded_kv_proves_nothing(
    agent: Talk, live_engine: LiveEngine, redis: Redis
) -> None:
    _, ids, hashes = await freeze(agent, live_engine)
    await plant(live_engine, redis, hashes, 3, 5)
    session, window = f"s_{uuid4().hex[:10]}", f"w_{uuid4().hex[:10]}"
    # It loads the wrong KV, and the canary is recorded on it.
    await agent.complete(ids, session=session)
    await agent.tool("window_freeze", session_id=session, window_name=window)
    thawed = await agent.tool("window_thaw", window_name=window)
    status = await agent.tool("window_status", window_name=window)
    assert thawed["verification"] == "skipped"
    assert "nothing has proven" in thawed["receipt"]["verification"]["reason"]
    assert status["canary"]["origin"] == "unproven"


async def test_what_a_verified_thaw_restored_may_be_frozen_again_and_is_as_good(
    agent: Talk, live_engine: LiveEngine
) -> None:
    window, ids, _ = await freeze(agent, live_engine)
    await live_engine.forget_gpu_cache()
    thawed = await agent.tool("window_thaw", window_name=window)
    assert thawed["verification"] == "exact"
    await agent.complete([*ids, 400, 401], session=thawed["session_id"])
    again = f"w_{uuid4().hex[:10]}"
    await agent.tool("window_freeze", session_id=thawed["session_id"], window_name=again)
    status = await agent.tool("window_status", window_name=again)
    assert status["canary"]["origin"] == "inherited"


async def test_a_thaw_says_that_it_verified_and_what_that_cost_and_may_be_told_not_to(
    agent: Talk, live_engine: LiveEngine
) -> None:
    window, _, _ = await freeze(agent, live_engine)
    await live_engine.forget_gpu_cache()
    verified = await agent.tool("window_thaw", window_name=window)
    evidence = verified["receipt"]["verification"]
    assert verified["verification"] == "exact"
    assert (evidence["tokens_compared"], evidence["first_difference"]) == (8, None)
    assert (evidence["compared_with"], evidence["canary_origin"]) == ("canary", "computed")
    assert evidence["verify_ms"] > 0
    skipped = await agent.tool("window_thaw", window_name=window, verify=False)
    assert skipped["verification"] == "skipped"
    assert skipped["receipt"]["verification"]["reason"] == "switched off"


async def test_a_window_frozen_without_a_canary_is_not_verified_and_says_so(
    agent: Talk, live_engine: LiveEngine
) -> None:
    session, _ = await agent.fill(words(100))
    window = f"w_{uuid4().hex[:10]}"
    await agent.tool("window_freeze", session_id=session, window_name=window, canary=False)
    thawed = await agent.tool("window_thaw", window_name=window)
    assert thawed["verification"] == "skipped"
    assert "has no canary" in thawed["receipt"]["verification"]["reason"]
