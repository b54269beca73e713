"""One real engine (vLLM + LMCache + Valkey with the tiny model) for the whole run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
import pytest

from cwm.adapters.lmcache.hashes import chunk_hashes, kv_ranks
from cwm.settings import LocalEngine, Storage
from cwm.stack.local import LocalStack, PartName
from cwm.stack.plan import plan_from_settings
from tests import postgres

T = TypeVar("T")
# A small model goes on with white space until its answer has no room for the rest of a tool call.
_COMPACT_JSON = (
    "--structured-outputs-config.backend xgrammar --structured-outputs-config.disable_any_whitespace true"
)


class LiveEngine:
    """A :class:`LocalStack` in a thread and a loop of its own, so that tests of any loop may use it."""

    def __init__(self, stack: LocalStack, loop: asyncio.AbstractEventLoop) -> None:
        self._stack, self._loop = stack, loop
        self.vllm_url, self.lmcache_url = stack.vllm_url, stack.lmcache_url
        self.coordinator_url, self.redis_url = stack.coordinator_url, stack.redis_url
        self.model_name, self.model_root = stack.model_name, stack.model_root
        self.engines = stack.engines
        self.chunk_size = stack.chunk_size
        self.storage_path = stack.storage_path
        self.max_model_len = httpx2.get(f"{self.vllm_url}/v1/models").json()["data"][0]["max_model_len"]

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(400)

    def kill(self, part: PartName) -> None:
        """SIGKILL, as a crash; the stack starts the part again."""
        self._wait(self._stack.kill(part))

    def wait_ready(self) -> None:
        self._wait(self._stack.wait_ready(300))

    def pids(self, part: PartName) -> list[int]:
        return self._stack.pids(part)

    def restarts(self, part: PartName) -> int:
        return self._stack.restarts[part]

    def logged(self, part: PartName, words: str) -> int:
        """How often the part has said so."""
        log = self._stack.plan.logs / f"{part}.log"
        return log.read_text(errors="replace").count(words)

    @contextmanager
    def held_down(self, *parts: PartName) -> Iterator[None]:
        """An outage of these parts for as long as the block lasts."""
        for part in parts:
            self._wait(self._stack.hold_down(part))
        try:
            yield
        finally:
            for part in parts:
                self._loop.call_soon_threadsafe(self._stack.let_up, part)
            self.wait_ready()

    async def forget_gpu_cache(self) -> None:
        """Empty vLLM's own prefix cache; it refuses while a request still holds blocks."""
        async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(30):
            while True:
                answer = await http.post(f"{self.vllm_url}/reset_prefix_cache")
                if answer.json().get("success"):
                    return

    async def drop_l1(self) -> None:
        async with httpx2.AsyncClient(trust_env=False) as http:
            (await http.post(f"{self.lmcache_url}/cache/clear", json={})).raise_for_status()

    async def read_locks(self) -> int:
        """Chunks in L1 that somebody still says to be reading."""
        async with httpx2.AsyncClient(trust_env=False) as http:
            status = (await http.get(f"{self.lmcache_url}/status")).raise_for_status().json()
        return sum(l1["read_locked_count"] for l1 in status["storage_manager"]["l1_managers"].values())

    async def lose_chunks(self, token_ids: list[int], salt: str, *, keep: int) -> None:
        """Remove every copy of the chunks behind the first ``keep``, as a lost disk and a lost Redis would."""
        keys = [
            {"chunk_hash_hex": name, "model_name": self.model_root, "kv_rank": rank, "cache_salt": salt}
            for name in chunk_hashes(token_ids, self.chunk_size)[keep:]
            for rank in kv_ranks(1)
        ]
        async with httpx2.AsyncClient(trust_env=False) as http:
            for tier in (
                {"tier": "l1"},
                {"tier": "l2", "adapter": "valkey"},
                {"tier": "l2", "adapter": "fs_native"},
            ):
                answer = await http.request(
                    "DELETE", f"{self.lmcache_url}/cache/objects", json={"keys": keys, **tier}
                )
                answer.raise_for_status()


@pytest.fixture(scope="session")
def live_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running(tmp_path_factory.mktemp("engine"), "tiny") as engine:
        yield engine


def engine_home() -> Path:
    """The tests' own home: whatever runs in this user's home, nothing of a run is there. Only what is prepared once is."""
    own = postgres.home()
    for name in ("engine", "models"):
        prepared = LocalEngine().home / name
        prepared.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (own / name).symlink_to(prepared)
    return own


@contextmanager
def running(
    folder: Path,
    model: str,
    *others: Mapping[str, Any],
    engine_args: str = "",
    variables: Mapping[str, str] | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    context: int | None = None,
    kv_cache_gb: float = 1,
) -> Iterator[LiveEngine]:
    """An engine for as long as the block lasts; ``model`` as in ``CWM_MODEL``, ``engine_args`` added to ``CWM_ENGINE_ARGS``,
    ``variables`` to vLLM's environment, ``context`` and ``kv_cache_gb`` as in ``CWM_MAX_MODEL_LEN`` and ``CWM_KV_CACHE_GB``. ``others``: what further engines have of their own."""
    storage = Storage(storage_path=folder / "storage", cpu_cache_gb=1, disk_cache_gb=4, redis_cache_gb=1)
    further = f"{_COMPACT_JSON} {engine_args}"
    local = LocalEngine(
        home=engine_home(),
        model=model,
        kv_cache_gb=kv_cache_gb,
        engine_args=further,
        dtype=dtype,
        max_model_len=context,
    )
    plan = plan_from_settings(storage, local, withheld=frozenset(), log=_tell)
    plan = replace(plan, serving_variables={**plan.serving_variables, **(variables or {})})
    # As with a Redis of its own: the tests lose that one, and `cwm demo` is tested as it is.
    stack = LocalStack(replace(plan, dev_endpoints=True, disk_first=False, others=others), report=_tell)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(stack.__aenter__(), loop).result(600)
        yield LiveEngine(stack, loop)
        asyncio.run_coroutine_threadsafe(stack.__aexit__(None, None, None), loop).result(120)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
