"""Values that were changed where they are stored never reach an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.prefix import restorable_tokens
from tests.deploy.modules import chunk_seal
from tests.live.conftest import LiveEngine, LiveGateway
from tests.live.talk import Talk, talk, words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


class Tier:
    """One lower tier, as whoever can write to it sees it."""

    async def names(self) -> list[str]:
        raise NotImplementedError

    async def read(self, name: str) -> bytes:
        raise NotImplementedError

    async def write(self, name: str, value: bytes) -> None:
        raise NotImplementedError

    async def remove(self, names: list[str]) -> None:
        raise NotImplementedError


class InRedis(Tier):
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def names(self) -> list[str]:
        return sorted([key.decode() async for key in self._client.scan_iter(count=1000)])

    async def read(self, name: str) -> bytes:
        value = await self._client.get(name)
        assert isinstance(value, bytes)
        return value

    async def write(self, name: str, value: bytes) -> None:
        await self._client.set(name, value)

    async def remove(self, names: list[str]) -> None:
        await self._client.delete(*names)


class OnDisk(Tier):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def names(self) -> list[str]:
        return await asyncio.to_thread(lambda: sorted(p.name for p in self._folder.glob("*.data")))

    async def read(self, name: str) -> bytes:
        return await asyncio.to_thread((self._folder / name).read_bytes)

    async def write(self, name: str, value: bytes) -> None:
        await asyncio.to_thread((self._folder / name).write_bytes, value)

    async def remove(self, names: list[str]) -> None:
        for name in names:
            await asyncio.to_thread((self._folder / name).unlink)


@pytest.fixture
async def agent(gateway: LiveGateway) -> AsyncIterator[Talk]:
    async with talk(gateway.url, gateway.model) as client:
        yield client


@pytest.fixture
async def redis(live_engine: LiveEngine) -> AsyncIterator[Redis]:
    async with Redis.from_url(live_engine.redis_url) as client:
        yield client


def flipped(value: bytes) -> bytes:
    middle = len(value) // 2
    return value[:middle] + bytes((value[middle] ^ 1,)) + value[middle + 1 :]


def zeroed(value: bytes) -> bytes:
    return bytes(len(value))


def truncated(value: bytes) -> bytes:
    return value[: len(value) // 2]


async def freeze(agent: Talk, live_engine: LiveEngine) -> tuple[str, list[int], list[str]]:
    """A window, its ids, and its chunks' hashes in order."""
    session, ids = await agent.fill(words(400))
    window = f"w_{uuid4().hex[:10]}"
    await agent.tool("window_freeze", session_id=session, window_name=window)
    return window, ids, chunk_hashes(ids, live_engine.chunk_size)


def _hash(name: str) -> str:
    return next(part for part in name.split("@") if len(part) == 64)


async def only_tier(
    kind: str, redis: Redis, live_engine: LiveEngine, hashes: list[str]
) -> tuple[Tier, list[str]]:
    """That tier and the names in it, in order; the other one has lost its copies of these chunks."""
    tiers: dict[str, Tier] = {"redis": InRedis(redis), "disk": OnDisk(live_engine.storage_path / "kv")}
    found = {}
    for name, tier in tiers.items():
        here = {_hash(stored): stored for stored in await tier.names()}
        assert all(chunk in here for chunk in hashes)
        found[name] = [here[chunk] for chunk in hashes]
    lost = "disk" if kind == "redis" else "redis"
    await tiers[lost].remove(found[lost])
    return tiers[kind], found[kind]


@pytest.mark.parametrize("kind", ["redis", "disk"])
@pytest.mark.parametrize("change", [flipped, zeroed, truncated])
async def test_a_changed_value_is_computed_again(
    agent: Talk, live_engine: LiveEngine, redis: Redis, kind: str, change: Callable[[bytes], bytes]
) -> None:
    window, ids, hashes = await freeze(agent, live_engine)
    expected = await agent.complete(ids, max_tokens=16)
    tier, stored = await only_tier(kind, redis, live_engine, hashes)
    await tier.write(stored[3], change(await tier.read(stored[3])))
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
    taken = stored[5] if donor == "the same window" else stored[len(hashes)]
    await tier.write(stored[3], await tier.read(taken))
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()

    thawed = await agent.tool("window_thaw", window_name=window)
    continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=16)

    assert thawed["partial"] is True
    assert thawed["receipt"]["tokens_restored"] < restorable_tokens(len(ids), live_engine.chunk_size)
    assert continued["token_ids"] == expected["token_ids"]


def chunk_name(stored: str) -> tuple[str, str]:
    """The name a chunk is sealed under and its salt, from its name in Redis or on disk."""
    model, rank, group, chunk, salt = stored.removesuffix(".data").rsplit("@", 4)
    model = model.replace("-SEP-", "/")
    return f"{model}@{int(rank, 16):x}@{int(group, 16):x}@{chunk}@{salt}", salt


def forged(live_engine: LiveEngine, value: bytes, taken_from: str, put_under: str) -> bytes:
    """The KV of one chunk, sealed under the name of another with the engine's own key."""
    ring = chunk_seal.Keyring(live_engine.storage_path / "kv.keys")
    plain, sealed = bytearray(len(value) - chunk_seal.OVERHEAD_BYTES), bytearray(len(value))
    chunk_seal.unseal(ring, *chunk_name(taken_from), memoryview(value), memoryview(plain))
    chunk_seal.seal(ring, *chunk_name(put_under), memoryview(plain), memoryview(sealed))
    return bytes(sealed)


async def durable(agent: Talk, window: str) -> None:
    async with asyncio.timeout(60):
        while (await agent.tool("window_status", window_name=window))["durability"] != "durable":
            pass


async def test_wrong_kv_that_opens_is_found_by_the_canary_and_never_continued_from(
    agent: Talk, live_engine: LiveEngine, redis: Redis
) -> None:
    window, ids, hashes = await freeze(agent, live_engine)
    expected = await agent.complete(ids, max_tokens=16)
    bystander, others = await agent.fill(words(100))
    tier, stored = await only_tier("redis", redis, live_engine, hashes)
    wrong = forged(live_engine, await tier.read(stored[5]), stored[5], stored[3])
    await tier.write(stored[3], wrong)
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()

    thawed = await agent.tool("window_thaw", window_name=window)
    continued = await agent.complete(ids, session=thawed["session_id"], max_tokens=16)
    without_a_session = await agent.complete(ids, max_tokens=16)

    assert thawed["verification"] == "mismatch"
    assert thawed["receipt"]["verification"]["deviation"] > 0.1
    assert thawed["receipt"]["verification"]["recovered"] == "exact"
    assert (thawed["partial"], thawed["receipt"]["tokens_restored"]) == (True, 0)
    assert "discarded" in thawed["warning"]
    assert continued["token_ids"] == expected["token_ids"]
    assert without_a_session["token_ids"] == expected["token_ids"]
    assert (await agent.complete([*others, 400], session=bystander))["token_ids"]
    left = {_hash(name): name for name in await tier.names() if stored[3].rpartition("@")[2] in name}
    assert not set(hashes) & set(left), "every copy under the old salt is gone"

    await durable(agent, window)
    await live_engine.drop_l1()
    await live_engine.forget_gpu_cache()
    again = await agent.tool("window_thaw", window_name=window)
    assert (again["verification"], again["partial"]) == ("exact", False)


async def test_a_thaw_says_that_it_verified_and_what_that_cost_and_may_be_told_not_to(
    agent: Talk, live_engine: LiveEngine
) -> None:
    window, _, _ = await freeze(agent, live_engine)
    await live_engine.forget_gpu_cache()
    verified = await agent.tool("window_thaw", window_name=window)
    evidence = verified["receipt"]["verification"]
    assert verified["verification"] == "exact"
    assert (evidence["tokens_compared"], evidence["first_difference"]) == (16, None)
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
    assert "without a canary" in thawed["receipt"]["verification"]["reason"]
