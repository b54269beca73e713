"""Room in the disk tier, removed through an LMCache that is asked as the real one is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cwm.stack.environment import GIB
from cwm.stack.local import LocalStack
from cwm.stack.room import ChunkKey, Disk, Room
from tests.stack.fake_lmcache import FakeLmcache, file_name
from tests.stack.shapes import PlanFor
from tests.transport.openai.gateway import serving

pytestmark = pytest.mark.slow

CHUNK_BYTES = 1000
HOUR = 3600


def chunk(number: int) -> ChunkKey:
    return ChunkKey("/models/tiny", 0x01000100, 0, f"{number:064x}", "cwm1-salt")


def fill(folder: Path, count: int) -> None:
    """Chunks 0 to ``count``, of which the first were not used for longest."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        file = folder / file_name(chunk(number))
        file.write_bytes(b"x" * CHUNK_BYTES)
        used = file.stat().st_mtime - HOUR * (count - number)
        os.utime(file, (used, used))


def there(folder: Path) -> list[int]:
    return sorted(int(file.name.split("@")[3], 16) for file in folder.iterdir())


@asynccontextmanager
async def kept(room: Room) -> AsyncIterator[None]:
    keeping = asyncio.create_task(room.keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def test_the_disk_tier_is_kept_small_also_beside_a_redis_that_is_somebody_elses(
    plan_for: PlanFor,
) -> None:
    said: list[str] = []
    plan = plan_for(redis_url="redis://127.0.0.1:9/0", disk_cache_gb=10 * CHUNK_BYTES / GIB)
    stack = LocalStack(plan, report=said.append)
    folder = plan.storage_path / "kv"
    fill(folder, 10)
    lmcache = FakeLmcache(folder, pins=[chunk(0)])
    async with serving(lmcache.app()) as url:
        stack.lmcache_url = stack.coordinator_url = url
        async with kept(stack.room()), asyncio.timeout(20):
            await lmcache.asked_to_delete.wait()

    assert there(folder) == [0, 4, 5, 6, 7, 8, 9]
    assert {adapter for adapter, _ in lmcache.deleted} == {"fs_native"}
    assert said == []


@pytest.mark.parametrize("disk_cache_gb", [0, 50])
async def test_a_disk_that_is_smaller_than_the_limit_is_not_filled(
    plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch, disk_cache_gb: float
) -> None:
    stack = LocalStack(plan_for(disk_cache_gb=disk_cache_gb), report=print)
    folder = stack.storage_path / "kv"
    fill(folder, 10)
    disk = Disk(total=4 * GIB, used=3 * GIB, free=GIB)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: disk)
    lmcache = FakeLmcache(folder)
    async with serving(lmcache.app()) as url:
        stack.lmcache_url = stack.coordinator_url = url
        async with kept(stack.room()), asyncio.timeout(20):
            await lmcache.asked_to_delete.wait()

    assert there(folder) == [3, 4, 5, 6, 7, 8, 9]


async def test_frozen_windows_on_a_disk_without_room_stay_and_are_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    fill(tmp_path, 3)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: Disk(total=4 * GIB, used=4 * GIB, free=0))
    lmcache = FakeLmcache(tmp_path, pins=[chunk(0), chunk(1), chunk(2)])
    async with (
        serving(lmcache.app()) as url,
        kept(Room(None, tmp_path, 50, (url, url), said.put_nowait)),
        asyncio.timeout(20),
    ):
        sentence = await said.get()

    assert there(tmp_path) == [0, 1, 2]
    assert "make room on its disk" in sentence
