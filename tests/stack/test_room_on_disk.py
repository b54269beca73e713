"""Room in the disk tier, removed through an LMCache that is asked as the real one is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from cwm.stack.environment import GIB
from cwm.stack.local import LocalStack
from cwm.stack.room import ChunkKey, Disk, PinsMovedError, Room
from tests.stack.fake_lmcache import FakeLmcache, file_name
from tests.stack.shapes import PlanFor
from tests.transport.llm.gateway import serving

pytestmark = pytest.mark.slow

CHUNK_BYTES = 1000
HOUR = 3600


def chunk(number: int) -> ChunkKey:
    return ChunkKey("/models/tiny", 0x01000100, 0, f"{number:064x}", "cwm1-salt")


def fill(folder: Path, numbers: Sequence[int]) -> None:
    """Chunks of which the first were not used for longest."""
    folder.mkdir(parents=True, exist_ok=True)
    for after, number in enumerate(reversed(numbers), 1):
        file = folder / file_name(chunk(number))
        file.write_bytes(b"x" * CHUNK_BYTES)
        used = file.stat().st_mtime - HOUR * after
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
    fill(folder, range(10))
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
    fill(folder, range(10))
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
    fill(tmp_path, range(3))
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


async def test_chunks_stay_whose_pins_move_up_while_they_are_read(tmp_path: Path) -> None:
    """Others leave when the first page has been read, so that the second begins behind some that stay."""
    frozen = [1_000, 1_099, 10_000, 10_099]
    fill(tmp_path, [*frozen, 1_000_000])
    lmcache = FakeLmcache(tmp_path, pins=[chunk(number) for number in range(20_100)])

    def hundred_leave(pages: int) -> None:
        if pages == 1:
            del lmcache.pins[:100]

    lmcache.page_read = hundred_leave
    async with serving(lmcache.app()) as url, httpx2.AsyncClient(trust_env=False) as http:
        await Room(None, tmp_path, CHUNK_BYTES / GIB, (url, url), print).keep_disk(http)

    assert there(tmp_path) == frozen


async def test_pins_that_come_while_they_are_read_are_seen_and_cost_no_second_reading(tmp_path: Path) -> None:
    fill(tmp_path, [20_000, 1_000_000])
    lmcache = FakeLmcache(tmp_path, pins=[chunk(number) for number in range(20_000)])
    lmcache.page_read = lambda pages: lmcache.pins.append(chunk(20_000)) if pages == 1 else None
    async with serving(lmcache.app()) as url, httpx2.AsyncClient(trust_env=False) as http:
        await Room(None, tmp_path, CHUNK_BYTES / GIB, (url, url), print).keep_disk(http)

    assert there(tmp_path) == [20_000]
    assert lmcache.pages == 3


async def test_nothing_is_removed_while_pins_leave_faster_than_they_are_read(tmp_path: Path) -> None:
    fill(tmp_path, [0, 1_000_000])
    lmcache = FakeLmcache(tmp_path, pins=[chunk(number) for number in range(20_000)])

    def one_leaves(_pages: int) -> None:
        del lmcache.pins[0]

    lmcache.page_read = one_leaves
    async with serving(lmcache.app()) as url, httpx2.AsyncClient(trust_env=False) as http:
        room = Room(None, tmp_path, CHUNK_BYTES / GIB, (url, url), print)
        with pytest.raises(PinsMovedError):
            await room.keep_disk(http)

    assert there(tmp_path) == [0, 1_000_000]
    assert lmcache.deleted == []


async def test_answers_of_the_coordinator_that_are_none_are_told_and_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.stack.room._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("cwm.stack.room._DISK_EVERY", 1)
    said: list[str] = []
    fill(tmp_path, range(10))
    bodies = [b"<html>", b"[]", b'{"pins": {}}', b'{"pins": [{"key": "x"}]}', b'{"pins": [{}]}', b"\xff"]
    lmcache = FakeLmcache(tmp_path, pins=[chunk(0)], instead_of_pins=[*bodies])
    async with (
        serving(lmcache.app()) as url,
        kept(Room(None, tmp_path, 10 * CHUNK_BYTES / GIB, (url, url), said.append)),
        asyncio.timeout(20),
    ):
        await lmcache.asked_to_delete.wait()

    assert there(tmp_path) == [0, 4, 5, 6, 7, 8, 9]
    (sentence,) = said
    assert "the disk tier cannot be kept below its limit for now" in sentence
    assert "the coordinator" in sentence
