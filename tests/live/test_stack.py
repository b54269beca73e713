"""The local stack on the real engine: what it brings back, what it cleans up, what it keeps room for."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from redis import Redis

from cwm.adapters.lmcache.hashes import chunk_hashes, kv_ranks
from cwm.stack import proc, shm
from cwm.stack.runfile import key_of
from tests.live.engine import LiveEngine, engine_home

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TOKENS = 2048


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False, timeout=60) as client:
        yield client


def new_ids(count: int = TOKENS) -> list[int]:
    return [random.randrange(4, 2000) for _ in range(count)]


def complete(http: httpx2.Client, engine: LiveEngine, ids: list[int], salt: str) -> dict[str, Any]:
    body = {"model": engine.model_name, "prompt": ids, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    answer = http.post(f"{engine.vllm_url}/v1/completions", json=body).raise_for_status().json()
    assert isinstance(answer, dict)
    return answer


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def key(engine: LiveEngine, ids: list[int], salt: str) -> dict[str, Any]:
    return {"model_name": engine.model_root, "world_size": 1, "token_ids": ids, "cache_salt": salt}


def backends(http: httpx2.Client, engine: LiveEngine, ids: list[int], salt: str) -> list[set[str]]:
    """For each chunk that the coordinator knows of, where it is."""
    answer = http.post(f"{engine.coordinator_url}/directory/lookup", json=key(engine, ids, salt)).json()
    return [{place["backend"] for place in result["placements"]} for result in answer["results"]]


def prefetched_without_l1(http: httpx2.Client, engine: LiveEngine, ids: list[int], salt: str) -> int:
    """Chunks that come back from the tiers below L1."""
    http.post(f"{engine.lmcache_url}/cache/clear", json={}).raise_for_status()
    submitted = http.post(f"{engine.lmcache_url}/cache/prefetches", json=key(engine, ids, salt)).json()
    answers: list[dict[str, Any]] = []

    def completed() -> bool:
        answers.append(http.get(f"{engine.lmcache_url}/cache/prefetches/{submitted['request_id']}").json())
        return str(answers[-1]["status"]) == "completed"

    until(completed)
    return int(answers[-1]["found_keys"])


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"


def stored_everywhere(
    http: httpx2.Client, engine: LiveEngine, ids: list[int], salt: str
) -> Callable[[], bool]:
    chunks = len(ids) // engine.chunk_size

    def check() -> bool:
        places = backends(http, engine, ids, salt)
        return len(places) == chunks and all({"valkey", "fs_native"} <= place for place in places)

    return check


def lose_on_disk(http: httpx2.Client, engine: LiveEngine, ids: list[int], salt: str) -> None:
    common = {"model_name": engine.model_root, "kv_rank": kv_ranks(1)[0], "cache_salt": salt}
    keys = [{"chunk_hash_hex": name, **common} for name in chunk_hashes(ids, engine.chunk_size)]
    body = {"keys": keys, "tier": "l2", "adapter": "fs_native"}
    http.request("DELETE", f"{engine.lmcache_url}/cache/objects", json=body).raise_for_status()


def test_a_killed_vllm_comes_back_the_same_and_leaves_no_shared_memory(
    live_engine: LiveEngine, http: httpx2.Client
) -> None:
    before = complete(http, live_engine, new_ids(), "stack-vllm")
    pids = live_engine.pids("vllm")
    segments = shm.mapped_by(pids)
    assert len(pids) >= 3
    assert segments, "vLLM uses shared memory"

    live_engine.kill("vllm")
    live_engine.wait_ready()

    assert not [segment for segment in segments if segment.path.exists()]
    assert not [pid for pid in pids if proc.start_time(pid)]
    after = complete(http, live_engine, new_ids(), "stack-vllm")
    assert after["system_fingerprint"] == before["system_fingerprint"], "windows are bound to it"


def test_a_killed_lmcache_comes_back_and_vllm_uses_it_again(
    live_engine: LiveEngine, http: httpx2.Client
) -> None:
    ids, salt = new_ids(), f"stack-{uuid4().hex[:8]}"
    complete(http, live_engine, ids, salt)
    until(stored_everywhere(http, live_engine, ids, salt))
    vllm, segments = live_engine.pids("vllm"), shm.mapped_by(live_engine.pids("lmcache"))

    live_engine.kill("lmcache")
    live_engine.wait_ready()

    status = http.get(f"{live_engine.lmcache_url}/status").json()
    assert status["worker_liveness"]["tracked_instances"] >= 1
    assert live_engine.pids("vllm") == vllm, "vLLM went on running"
    assert not [segment for segment in segments - shm.mapped_by(vllm) if segment.path.exists()]
    assert prefetched_without_l1(http, live_engine, ids, salt) == TOKENS // live_engine.chunk_size
    http.post(f"{live_engine.vllm_url}/reset_prefix_cache").raise_for_status()
    assert cached(complete(http, live_engine, ids, salt)) == TOKENS - 1


def test_a_killed_valkey_and_coordinator_lose_no_chunk_and_no_pin(
    live_engine: LiveEngine, http: httpx2.Client
) -> None:
    ids, salt = new_ids(), f"stack-{uuid4().hex[:8]}"
    http.post(
        f"{live_engine.coordinator_url}/cache/pins", json=key(live_engine, ids, salt)
    ).raise_for_status()
    complete(http, live_engine, ids, salt)
    until(stored_everywhere(http, live_engine, ids, salt))

    live_engine.kill("valkey")
    live_engine.kill("coordinator")
    live_engine.wait_ready()

    pins = http.get(f"{live_engine.coordinator_url}/cache/pins", params={"cache_salt": salt}).json()
    assert pins["total"] == TOKENS // live_engine.chunk_size
    assert prefetched_without_l1(http, live_engine, ids, salt) == TOKENS // live_engine.chunk_size
    http.post(f"{live_engine.vllm_url}/reset_prefix_cache").raise_for_status()
    assert cached(complete(http, live_engine, ids, salt)) == TOKENS - 1


def test_a_full_valkey_loses_what_nobody_froze_and_never_a_frozen_last_copy(
    live_engine: LiveEngine, http: httpx2.Client
) -> None:
    frozen, passing, salt = new_ids(), new_ids(), f"stack-{uuid4().hex[:8]}"
    pins = f"{live_engine.coordinator_url}/cache/pins"
    http.post(pins, json=key(live_engine, frozen, salt)).raise_for_status()
    for ids in (frozen, passing):
        complete(http, live_engine, ids, salt)
        until(stored_everywhere(http, live_engine, ids, salt))
    lose_on_disk(http, live_engine, frozen, salt)

    with Redis.from_url(live_engine.redis_url) as redis:
        limit = redis.config_get("maxmemory")["maxmemory"]
        redis.config_set("maxmemory", 4 * 1024 * 1024)
        try:
            until(lambda: all("valkey" not in place for place in backends(http, live_engine, passing, salt)))
            kept = backends(http, live_engine, frozen, salt)
        finally:
            redis.config_set("maxmemory", limit)

    chunks = TOKENS // live_engine.chunk_size
    assert [place - {"dram"} for place in kept] == [{"valkey"}] * chunks
    assert prefetched_without_l1(http, live_engine, frozen, salt) == chunks
    assert prefetched_without_l1(http, live_engine, passing, salt) == chunks, "the disk still has it"
    http.request("DELETE", pins, json=key(live_engine, frozen, salt)).raise_for_status()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``cwm up`` with a storage of its own, ready."""
    with subprocess.Popen(
        up_argv(tmp_path), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert any("CWM is ready: " in line for line in process.stdout), "it ended before it was ready"
            yield process
        finally:
            process.terminate()
    for file in (engine_home() / "run").glob(
        "cwm-*.json"
    ):  # a killed one leaves them for a next start that never comes here
        if str(tmp_path) in file.read_text():
            file.unlink()


def environment() -> dict[str, str]:
    """Of a ``cwm up`` that keeps everything in the folder that it runs in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CWM_")}
    return {
        **kept,
        "CWM_HOME": str(engine_home()),
        "CWM_DB_PATH": "cwm.db",
        "CWM_SECRET_FILE": "secret",
        "CWM_CPU_CACHE_GB": "0.5",
        "CWM_KV_CACHE_GB": "1",
    }


def up_argv(folder: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "cwm",
        "up",
        "--model",
        "tiny",
        "--port",
        "0",
        "--storage-path",
        str(folder / "storage"),
    ]


def parts_of(storage: Path) -> dict[str, int]:
    """Leaders of the sessions of the stack that uses ``storage``."""
    files = [json.loads(file.read_text()) for file in (engine_home() / "run").glob("cwm-????????????.json")]
    (mine,) = [document for document in files if document.get("storage_path") == str(storage)]
    return {name: part["pid"] for name, part in mine["parts"].items()}


def test_a_storage_has_one_cwm_up_and_a_killed_one_takes_its_engine_with_it(
    up: subprocess.Popen[str], tmp_path: Path
) -> None:
    second = subprocess.run(
        up_argv(tmp_path),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    parts = parts_of(tmp_path / "storage")
    segments = {segment for pid in parts.values() for segment in shm.mapped_by(proc.session_members(pid))}
    pool = shm.FOLDER / f"lmcache_l1_pool_{key_of(tmp_path / 'storage')}"
    assert pool.exists()
    assert len(parts) == 4
    assert second.returncode != 0
    assert f"nother cwm up (process {up.pid})" in second.stderr

    up.send_signal(signal.SIGKILL)
    up.wait()

    until(lambda: not any(proc.session_members(pid) for pid in parts.values()))
    until(lambda: not [segment for segment in segments if segment.path.exists()])
    until(lambda: not pool.exists())
