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
