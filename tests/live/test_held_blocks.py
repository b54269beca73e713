"""Blocks that LMCache's server reads or writes after vLLM's step, with a server that stands still meanwhile: all KV is right."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, pairwise
from uuid import uuid4

import httpx2
import pytest

from cwm import shipped
from cwm.stack.environment import Pins, prepare_environment
from tests.live.engine import LiveEngine, engine_home, running
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

_TOLERANCE = 1e-3
_CHUNKS = 14
# Two steps of 512 tokens: the blocks of the first one are given up before the second one.
_BRANCHES = (3, 5, 7, 9, 11, 14)
# Times 24 loads.
_ROUNDS = int(os.environ.get("CWM_HELD_ROUNDS", "1"))
_HELD_SECONDS = (0.4, 0.8, 1.5, 5.0)
_DRIVEN = {"LMCACHE_MP_TRANSFER_MODE": "lmcache_driven"}
_LONG_SECONDS, _TRIES = 5.0, 4
_PATIENCE_SECONDS = 60
# So few that other requests soon get those of a load that was given up.
_BLOCKS = 1200
_LOAD_CHUNKS, _LOADS_AT_ONCE = 28, 6
_OTHER_CHUNKS, _OTHERS = 12, 40
_MOMENTS, _MOMENT_SECONDS = 20, 0.02
_HUNT_SECONDS = 300
_BROKEN_OFF = "after a failed async KV load"
_GIVEN_UP, _TAKEN_UP = "entering degraded mode", "resuming normal operation"


@pytest.fixture(scope="module")
async def windowed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveEngine]:
    folder = tmp_path_factory.mktemp("windowed")
    environment = await prepare_environment(engine_home(), Pins.for_device("cpu"), print)
    script = shipped.folder("engine") / "tools/make_windowed_model.py"
    model = folder / "model"
    await asyncio.to_thread(
        subprocess.run, [str(environment.python), str(script), str(model)], check=True, capture_output=True
    )
    blocks = f"--num-gpu-blocks-override {_BLOCKS}"
    with running(folder, str(model), variables=_DRIVEN, engine_args=blocks) as started:
        yield started


@dataclass(frozen=True, slots=True)
class Asked:
    likeliest: list[Mapping[str, float]]
    loaded: int
    cached: int

    def differs(self, other: Asked) -> float:
        """The largest change of a log-probability that both have; endless if a token has other candidates altogether."""
        changes = [0.0]
        for own, others in zip(self.likeliest, other.likeliest, strict=True):
            shared = own.keys() & others.keys()
            changes += [abs(own[token] - others[token]) for token in shared] or [float("inf")]
        return max(changes)


@dataclass(frozen=True, slots=True)
class Client:
    engine: LiveEngine
    http: httpx2.AsyncClient

    def body(
        self, ids: list[int], salt: str, max_tokens: int, load_tokens: int | None = None
    ) -> dict[str, object]:
        limit = {} if load_tokens is None else {"cwm.load_tokens": load_tokens}
        return {
            "model": self.engine.model_name,
            "prompt": ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": salt,
            "return_tokens_as_token_ids": True,
            "logprobs": 5,
            "kv_transfer_params": {"cwm.tell_loaded": True, **limit},
        }

    async def ask(
        self, ids: list[int], salt: str, max_tokens: int = 6, load_tokens: int | None = None
    ) -> Asked:
        answer = await self.http.post(
            f"{self.engine.vllm_url}/v1/completions", json=self.body(ids, salt, max_tokens, load_tokens)
        )
        document = answer.raise_for_status().json()
        return Asked(
            document["choices"][0]["logprobs"]["top_logprobs"],
            document["kv_transfer_params"]["cwm.loaded_tokens"],
            document["usage"]["prompt_tokens_details"]["cached_tokens"],
        )

    @asynccontextmanager
    async def stream(
        self, ids: list[int], salt: str, max_tokens: int, load_tokens: int | None = None
    ) -> AsyncIterator[AsyncIterator[float]]:
        """A stream of tokens; each is the time at which it came."""
        body = {**self.body(ids, salt, max_tokens, load_tokens), "stream": True}
        async with self.http.stream("POST", f"{self.engine.vllm_url}/v1/completions", json=body) as answer:

            async def times() -> AsyncIterator[float]:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield time.monotonic()

            yield times()


@pytest.fixture
async def client(windowed: LiveEngine) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as http:
        yield Client(windowed, http)


@contextmanager
def standing_still(engine: LiveEngine) -> Iterator[None]:
    pids = engine.pids("lmcache")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def is_well_again(engine: LiveEngine) -> None:
    """Until scheduler and worker use LMCache again, if they had given it up."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while engine.logged("vllm", _GIVEN_UP) != engine.logged("vllm", _TAKEN_UP):  # noqa: ASYNC110 - a log
            await asyncio.sleep(0.05)


async def asked_while_it_stands_still(client: Client, ids: list[int], salt: str, seconds: float) -> None:
    """Store ``ids`` with a server that stands still from before the first step has ended."""
    # Nothing is looked up, which would need the server.
    async with client.stream(ids, salt, 200, load_tokens=0) as tokens:
        seen = asyncio.ensure_future(exhausted(tokens))
        with standing_still(client.engine):
            await asyncio.sleep(seconds)
        await seen
    await is_well_again(client.engine)


async def exhausted(tokens: AsyncIterator[float]) -> list[float]:
    return [each async for each in tokens]


@pytest.mark.parametrize("seconds", _HELD_SECONDS)
async def test_branches_inside_a_prompt_load_what_was_computed(client: Client, seconds: float) -> None:
    chunk = client.engine.chunk_size
    wrong, loads = [], 0
    for number in range(_ROUNDS):
        ids, salt = words(_CHUNKS * chunk + 9 + number), uuid4().hex
        await asked_while_it_stands_still(client, ids, salt, seconds)
        for at in _BRANCHES:
            branch = ids[: at * chunk] + words(20)
            cold = await client.ask(branch, uuid4().hex)
            await client.engine.forget_gpu_cache()
            warm = await client.ask(branch, salt)
            loads += warm.loaded > 0
            if warm.differs(cold) > _TOLERANCE:
                wrong.append((number, at, warm.loaded // chunk, warm.differs(cold)))
    assert (wrong, loads) == ([], _ROUNDS * len(_BRANCHES))


async def computed_while_a_load_is_given_up(client: Client, at_seconds: float, salt: str) -> list[list[int]]:
    """What other requests computed behind loads that a server gave up which stands still from ``at_seconds`` on; none if it gave up none."""
    chunk, own = client.engine.chunk_size, uuid4().hex
    loading = [words(_LOAD_CHUNKS * chunk + 9) for _ in range(_LOADS_AT_ONCE)]
    for ids in loading:
        await client.ask(ids, own, 1)
    await client.engine.forget_gpu_cache()
    loads = [asyncio.create_task(client.ask(ids, own, 1)) for ids in loading]
    await asyncio.sleep(at_seconds)
    others = []
    before = client.engine.logged("vllm", _BROKEN_OFF)
    with standing_still(client.engine):
        await asyncio.gather(*loads)
        if client.engine.logged("vllm", _BROKEN_OFF) > before:
            others = [words(_OTHER_CHUNKS * chunk + 9) for _ in range(_OTHERS)]
            for ids in others:
                await client.ask(ids, salt, 1, load_tokens=0)
    await is_well_again(client.engine)
    return others


async def test_a_load_that_was_given_up_writes_into_no_other_request(client: Client) -> None:
    others: list[list[int]] = []
    salt = uuid4().hex
    async with asyncio.timeout(_HUNT_SECONDS):
        # How long a lookup and a load take is the machine's.
        for moment in cycle(range(1, _MOMENTS)):
            if others := await computed_while_a_load_is_given_up(client, moment * _MOMENT_SECONDS, salt):
                break
    again = [await client.ask(ids, salt, 4, load_tokens=0) for ids in others]
    fresh = [await client.ask(ids, uuid4().hex, 4, load_tokens=0) for ids in others]
    assert sum(each.cached > 0 for each in again) > len(others) // 2
    assert [each for each in map(Asked.differs, again, fresh) if each > _TOLERANCE] == []


async def longest_pause(client: Client) -> float:
    """Between two tokens of a stream, in seconds, while others are stored and the server stands still."""
    times: list[float] = []
    begins = asyncio.Event()

    async def listen() -> None:
        async with client.stream(words(40), uuid4().hex, 8000, load_tokens=0) as tokens:
            async for each in tokens:
                times.append(each)
                begins.set()

    async with asyncio.TaskGroup() as group:
        listening = group.create_task(listen())
        await begins.wait()
        with standing_still(client.engine):
            begun = time.monotonic()
            while time.monotonic() < begun + _LONG_SECONDS:
                others = words(6 * client.engine.chunk_size + 9)
                async with client.stream(others, uuid4().hex, 30, load_tokens=0) as other:
                    await exhausted(other)
            ended = time.monotonic()
        listening.cancel()
    await is_well_again(client.engine)
    seen = [begun, *(each for each in times if begun < each < ended), ended]
    return max(after - before for before, after in pairwise(seen))


async def test_a_server_that_stands_still_keeps_no_stream_waiting(client: Client) -> None:
    # A busy machine makes pauses, too, but not each time.
    pauses: list[float] = []
    while len(pauses) < _TRIES and min(pauses, default=1.0) >= 1:
        pauses.append(await longest_pause(client))
    assert min(pauses) < 1, pauses


async def test_a_request_that_leaves_gives_its_held_blocks_back(client: Client) -> None:
    with standing_still(client.engine):
        async with client.stream(words(900), uuid4().hex, 500, load_tokens=0) as tokens:
            await anext(tokens)
    await is_well_again(client.engine)
    # It refuses while a block is held.
    await client.engine.forget_gpu_cache()


async def test_a_server_that_dies_gives_held_blocks_back(client: Client) -> None:
    with standing_still(client.engine):
        async with client.stream(words(900), uuid4().hex, 20, load_tokens=0) as tokens:
            await exhausted(tokens)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.engine.forget_gpu_cache()
        await asyncio.to_thread(client.engine.kill, "lmcache")
    await client.engine.forget_gpu_cache()
    await asyncio.to_thread(client.engine.wait_ready)
    await is_well_again(client.engine)
