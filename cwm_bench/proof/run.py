"""``cwm bench proof``: plant wrong KV above the seal, thaw it and right KV, alone and in company, and count the verdicts."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol
from uuid import uuid4

from redis.asyncio import Redis

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.settings import Engine, Settings
from cwm.stack.local import LocalStack
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.caches import empty_memory, stored
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.damage import Copies, Forger, InRedis, LowerTier, OnDisk, copies
from cwm_bench.harness.figures import Report
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway
from cwm_bench.proof import faults, figures
from cwm_bench.proof.company import company
from cwm_bench.proof.engines import DTYPES, Dtype, is_possible, plan_of
from cwm_bench.proof.faults import Case, Planted
from cwm_bench.proof.figures import Speed, Thawed
from cwm_bench.proof.parts import Company, Layout

_CORPUS_TOKENS: Final = 60_000
_SPEED_TOKENS: Final = 7_900
# How often windows of a length are drawn: long ones take most of the time.
_LENGTHS: Final[Mapping[int, int]] = {330: 8, 520: 7, 900: 6, 1_500: 5, 2_600: 4, 4_200: 2, 7_900: 1}
_HEAD_TOKENS: Final = 6
_SAMPLED: Final = 8
_DURABLE_SECONDS: Final = 120.0
_COLD_RUNS: Final = 2
_THAWS: Final = 7
_PROGRESS_EVERY: Final = 10
_STORED_SECONDS: Final = 30.0
_LOOK_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run: thaws of right KV and planted faults in each cell; ``speed`` also times thaws of a long window of the settings' model."""

    cases: int = 30
    layouts: Sequence[Layout] = tuple(Layout)
    dtypes: Sequence[Dtype] = DTYPES
    companies: Sequence[Company] = tuple(Company)
    speed: bool = True


async def run(settings: Settings, report: Callable[[str], None], scope: Scope, seed: int | None) -> Report:
    """Run every cell, one stack for each layout and type, in a temporary folder; ``report`` gets progress lines."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    report(f"seed {seed}")
    thaws: list[Thawed] = []
    speeds: list[Speed] = []
    models: dict[str, None] = {}
    engines = [each for each in product(scope.layouts, scope.dtypes) if is_possible(*each)]
    for layout, dtype in engines:
        async with own_folder(settings.local_engine.home.absolute(), report) as folder:
            plan = await plan_of(layout, dtype, settings, folder, report)
            async with (
                LocalStack(plan, report=report) as stack,
                gateway({**engine_variables(stack, folder), **QUIET}, folder / "gateway.log") as endpoint,
                cells(stack, endpoint.url, layout, dtype, Random(seed), report) as ladder,  # noqa: S311 - repeatable
            ):
                models[stack.model_name] = None
                for kind in scope.companies:
                    thaws += await ladder.thaws(kind, scope)
                if scope.speed and layout is Layout.FULL:
                    speeds += [await ladder.speed(kind) for kind in (Company.ALONE, Company.STREAMS)]
    context = {"cwm": __version__, "models": [*models], "machine": platform.machine(), "seed": seed}
    return Report("proof", context, figures.sections(thaws, speeds), figures.summary(thaws, speeds))


@dataclass(slots=True)
class _Window:
    """A frozen window and what it has stored."""

    name: str
    token_ids: list[int]
    mine: Copies


class Stack(Protocol):
    """A running engine with vLLM's development endpoints; ``storage_path`` holds its disk tier and keyring."""

    vllm_url: str
    lmcache_url: str
    coordinator_url: str
    redis_url: str
    model_name: str
    chunk_size: int
    storage_path: Path


@asynccontextmanager
async def cells(
    stack: Stack, url: str, layout: Layout, dtype: Dtype, random: Random, report: Callable[[str], None]
) -> AsyncIterator[Cells]:
    engine = Engine(lmcache_url=stack.lmcache_url, coordinator_url=stack.coordinator_url)
    async with (
        aclosing(LmcacheTier(engine)) as kv_tier,
        agent(url, stack.model_name) as client,
        Redis.from_url(stack.redis_url) as redis,
    ):
        tiers = (InRedis(redis), OnDisk(stack.storage_path / "kv"))
        forger = Forger(stack.storage_path / "kv.keys")
        corpus = list(await read_corpus(stack, _CORPUS_TOKENS))
        yield Cells(stack, client, kv_tier, tiers, forger, corpus, layout, dtype, random, report)


@dataclass(slots=True)
class Cells:
    stack: Stack
    agent: Agent
    kv_tier: LmcacheTier
    tiers: Sequence[LowerTier]
    forger: Forger
    corpus: Sequence[int]
    layout: Layout
    dtype: Dtype
    random: Random
    report: Callable[[str], None]
    windows: dict[int, _Window] = field(default_factory=dict)

    async def thaws(self, kind: Company, scope: Scope) -> list[Thawed]:
        """Thaws of right KV and of planted faults in turns, in this company."""
        lengths = self.random.choices(list(_LENGTHS), list(_LENGTHS.values()), k=scope.cases)
        for length in {*lengths, *list(_LENGTHS)[:2]} - self.windows.keys():
            self.windows[length] = await self._frozen(self._text(length))
        cases = faults.deal(scope.cases, self.layout, self.random)
        thaws: list[Thawed] = []
        for number, (length, case) in enumerate(zip(lengths, cases, strict=True), 1):
            window = self.windows[length]
            thaws.append(await self._thaw(kind, window, None, window.name))
            thaws.append(await self._planted(kind, length, case))
            if number % _PROGRESS_EVERY == 0 or number == scope.cases:
                missed = sum(thaw.is_missed for thaw in thaws)
                condemned = sum(thaw.is_condemned_right for thaw in thaws)
                self.report(
                    f"{self.layout.value}, {self.dtype}, {kind.value}: {number} of {scope.cases}; {missed} missed, {condemned} right ones condemned"
                )
        return thaws

    async def speed(self, kind: Company) -> Speed:
        """Thaws of a window of 7,900 tokens with everything they do, and computing its tokens straight at the engine."""
        ids = self._text(_SPEED_TOKENS)
        cold_ms = [await self._cold_ms(ids) for _ in range(_COLD_RUNS)] if kind is Company.ALONE else []
        window = await self._freeze(ids)
        if not cold_ms:
            async with company(kind, self.stack.vllm_url, self.stack.model_name, self.random):
                cold_ms = [await self._cold_ms(ids)]
        thaw_ms: list[float] = []
        for _ in range(_THAWS):
            await empty_memory(self.agent.http, self.stack)
            async with company(kind, self.stack.vllm_url, self.stack.model_name, self.random):
                thaw_ms.append((await self.agent.timed_tool("window_thaw", window_name=window))[1])
        return Speed(self.dtype, kind, len(ids), cold_ms, thaw_ms)

    async def _cold_ms(self, ids: Sequence[int]) -> float:
        body = {
            "model": self.stack.model_name,
            "prompt": list(ids),
            "max_tokens": 1,
            "cache_salt": f"cold-{uuid4().hex[:8]}",
            "kv_transfer_params": {"cwm.load_tokens": 0, "lmcache.max_offload_tokens": 0},
        }
        started = asyncio.get_running_loop().time()
        (await self.agent.http.post(f"{self.stack.vllm_url}/v1/completions", json=body)).raise_for_status()
        return round((asyncio.get_running_loop().time() - started) * 1000, 1)

    async def _planted(self, kind: Company, length: int, case: Case) -> Thawed:
        window = self.windows[length]
        others = [each for each in self.windows.values() if each is not window]
        chunk = case.chunk(len(window.mine.names))
        if case.planted is Planted.STALE:
            other = await self._with_another_beginning(window)
            source = other.mine
            # Its KV would fill Valkey in the course of many cases.
            await self._deleted(other.name)
        else:
            source = self.random.choice(others).mine
        value = faults.forged(case.planted, chunk, self.forger, window.mine, source)
        name = window.mine.names[chunk]
        for tier in self.tiers:
            await self._write(tier, name, value)
        thawed_name = window.name
        if case.planted is Planted.CANARY_FROM_LOAD:
            thawed_name = await self._frozen_from_a_load(window)
        thaw = await self._thaw(kind, window, case, thawed_name)
        await self._renewed(length, thawed_name)
        return thaw

    async def _frozen_from_a_load(self, window: _Window) -> str:
        """A window whose session used the wrong KV: the canary is recorded on it."""
        await empty_memory(self.agent.http, self.stack)
        session = f"load_{uuid4().hex[:12]}"
        await self.agent.complete(window.token_ids, _SAMPLED, session=session)
        name = f"load-{uuid4().hex[:12]}"
        await self.agent.tool("window_freeze", session_id=session, window_name=name)
        return name

    async def _thaw(self, kind: Company, window: _Window, case: Case | None, name: str) -> Thawed:
        await stored(self.kv_tier)
        await empty_memory(self.agent.http, self.stack)
        before = await self._names_of_others(window)
        async with company(kind, self.stack.vllm_url, self.stack.model_name, self.random):
            thawed = await self.agent.tool("window_thaw", window_name=name)
        receipt = thawed["receipt"]
        evidence = receipt["verification"]
        last = len(window.mine.names) - 1
        reached = receipt["blocks_found"] > (last if case is None else case.chunk(last + 1))
        return Thawed(
            self.layout,
            self.dtype,
            kind,
            None if case is None else case.planted,
            len(window.token_ids),
            reached,
            thawed["verification"],
            evidence["compared_with"],
            evidence["deviation"],
            len(before - await self._names_of_others(window)),
            evidence["verify_ms"],
        )

    async def _names_of_others(self, window: _Window) -> set[str]:
        """The stored chunks of the other windows of the benchmark."""
        others = {name for each in self.windows.values() if each is not window for name in each.mine.names}
        return others & set(await self.tiers[0].names())

    async def _frozen(self, ids: list[int]) -> _Window:
        return _Window(await self._freeze(ids), ids, await self._copies(ids))

    async def _with_another_beginning(self, window: _Window) -> _Window:
        """A window that differs from this one in its first tokens alone."""
        head = self.random.sample(self.corpus, _HEAD_TOKENS)
        return await self._frozen([*head, *window.token_ids[_HEAD_TOKENS:]])

    async def _freeze(self, ids: list[int]) -> str:
        session = f"proof_{uuid4().hex[:12]}"
        await self.agent.complete(ids, _SAMPLED, session=session)
        name = f"proof-{uuid4().hex[:12]}"
        await self.agent.tool("window_freeze", session_id=session, window_name=name)
        await stored(self.kv_tier)
        return name

    async def _copies(self, ids: Sequence[int]) -> Copies:
        hashes = chunk_hashes(list(ids[:-1]), self.stack.chunk_size)
        deadline = asyncio.get_running_loop().time() + _STORED_SECONDS
        while True:
            try:
                return await copies(self.tiers[0], hashes)
            except KeyError:
                # A window is durable as soon as one tier has it.
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _text(self, length: int) -> list[int]:
        """Token ids of which no other text has the beginning."""
        start = self.random.randrange(len(self.corpus) - length)
        head = self.random.sample(self.corpus, _HEAD_TOKENS)
        return [*head, *self.corpus[start : start + length - _HEAD_TOKENS]]

    async def _renewed(self, length: int, thawed_name: str) -> None:
        """A fresh window in place of one that was planted in, so that no case sees what another left."""
        window = self.windows[length]
        for name in {thawed_name, window.name}:
            await self._deleted(name)
        self.windows[length] = await self._frozen(self._text(length))

    async def _deleted(self, name: str) -> None:
        await self._settled(name)
        await self.agent.tool("window_delete", window_name=name, delete_blocks=True, force=True)

    async def _settled(self, name: str) -> None:
        async with asyncio.timeout(_DURABLE_SECONDS):
            while (await self._status(name))["durability"] == "pending":
                pass

    async def _status(self, name: str) -> Mapping[str, Any]:
        return await self.agent.tool("window_status", window_name=name)

    async def _write(self, tier: LowerTier, name: str, value: bytes) -> None:
        """Under the tier's own name of the chunk."""
        part = name.split("@")
        for own in await tier.names():
            if own.removesuffix(".data").split("@")[-2:] == part[-2:]:
                await tier.write(own, value)
