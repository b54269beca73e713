"""The doctor on a real engine: a well one, and one whose parts disagree."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cwm.adapters.sql import schema
from cwm.stack.environment import Pins, prepare_environment
from tests.live.engine import LiveEngine, engine_home

pytestmark = pytest.mark.live


async def examine(folder: Path, engine: LiveEngine, **variables: str) -> tuple[dict[str, Any], int]:
    """What ``cwm doctor --json`` says of this engine, and its exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CWM_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cwm",
        "doctor",
        "--json",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        env={
            **kept,
            "CWM_DB_PATH": str(folder / "cwm.db"),
            "CWM_SECRET_FILE": str(folder / "secret"),
            "CWM_VLLM_URL": engine.vllm_url,
            "CWM_LMCACHE_URL": engine.lmcache_url,
            "CWM_COORDINATOR_URL": engine.coordinator_url,
            "CWM_REDIS_URL": engine.redis_url,
            **variables,
        },
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return json.loads(said), process.returncode


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in answer["findings"]}


@asynccontextmanager
async def coordinator(folder: Path, chunk_size: int) -> AsyncIterator[str]:
    """A coordinator of LMCache that cuts chunks of another size, and no server is registered with it."""
    engine = await prepare_environment(engine_home(), Pins.for_device("cpu"), print)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(engine.python, "-m", "lmcache.cli.main", "coordinator", "--host", "127.0.0.1", "--port", str(port)),
        *("--chunk-size", str(chunk_size), "--metadata-path", str(folder / "metadata.json")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "LMCACHE_TRACK_USAGE": "false"},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await answering(f"{url}/healthz")
        yield url
    finally:
        process.kill()
        await process.wait()


async def answering(url: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(60):
        while True:
            try:
                if (await http.get(url)).is_success:
                    return
            except httpx2.TransportError:
                await asyncio.sleep(0.1)


async def test_a_well_engine_passes_every_check(live_engine: LiveEngine, tmp_path: Path) -> None:
    await schema.upgrade(f"sqlite:///{tmp_path / 'cwm.db'}")
    answer, status = await examine(tmp_path, live_engine, CWM_SECRET="a test's secret")

    assert {f["name"]: f["message"] for f in answer["findings"] if f["status"] != "ok"} == {}
    assert (answer["ok"], status) == (True, 0)
    assert answer["versions"]["vllm"].startswith("0.")
    assert answer["versions"]["lmcache"].startswith("0.")


async def test_what_the_doctor_stored_is_gone_when_it_leaves(live_engine: LiveEngine, tmp_path: Path) -> None:
    await examine(tmp_path, live_engine)

    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(30):
        while True:
            listed = await http.get(f"{live_engine.coordinator_url}/directory/keys", params={"limit": 10_000})
            left = [
                key for key in listed.json()["keys"] if key["key"]["cache_salt"].startswith("cwm1-doctor")
            ]
            if not [key for key in left if key["placements"]]:
                return
            await asyncio.sleep(0.1)


async def test_a_coordinator_with_another_chunk_size_is_named_with_the_fix(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    async with coordinator(tmp_path, 2 * live_engine.chunk_size) as url:
        answer, status = await examine(tmp_path, live_engine, CWM_COORDINATOR_URL=url)

    found = by_name(answer)
    assert status == 1
    assert found["coordinator"]["status"] == "fault"
    assert f"{2 * live_engine.chunk_size} tokens" in found["coordinator"]["message"]
    assert f"--chunk-size {live_engine.chunk_size}" in found["coordinator"]["fix"]
    assert found["instances"]["status"] == "fault"
    assert found["round trip"]["status"] == "skipped"


async def test_a_coordinator_that_hears_nothing_of_stores_is_a_fault(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    async with coordinator(tmp_path, live_engine.chunk_size) as url:
        answer, _ = await examine(tmp_path, live_engine, CWM_COORDINATOR_URL=url)

    found = by_name(answer)
    assert found["coordinator"]["status"] == "ok"
    assert found["directory"]["status"] == "fault"


async def test_without_vllm_the_cache_is_told_but_not_probed(live_engine: LiveEngine, tmp_path: Path) -> None:
    answer, status = await examine(tmp_path, live_engine, CWM_VLLM_URL="http://127.0.0.1:9")

    found = by_name(answer)
    assert status == 1
    assert found["vllm"]["status"] == "fault"
    assert found["lmcache"]["status"] == "ok"
    assert found["attached"]["status"] == "skipped"
