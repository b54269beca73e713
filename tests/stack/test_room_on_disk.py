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
from cwm.stack.room import ChunkKey, Room
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
