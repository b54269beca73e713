"""``cwm bench faults``: damage the stored chunks of a window, thaw it, and compare its continuation."""

from __future__ import annotations

import asyncio
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.adapters.lmcache.hashes import chunk_hashes
from cwm.domain.engine import Tier
from cwm.settings import Engine, Settings
from cwm.stack.local import LocalStack
from cwm_bench.faults import cases as faults
from cwm_bench.faults.cases import TIERS, Case, CaseOutcome, ChunkPosition, Signs
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.caches import empty_memory, stored
from cwm_bench.harness.damage import (
    Copies,
    Fault,
    Forger,
    InRedis,
    LowerTier,
    OnDisk,
    copies,
    flipped,
    truncated,
    zeroed,
)
from cwm_bench.harness.figures import Report
from cwm_bench.harness.folder import own_folder, own_plan
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway

_COMPARED_TOKENS = 32  # also tokens that no look covers
_SAMPLED = 8
_VOCABULARY = range(300, 1800)  # no special token of any model used here
_REFUSED = "lmcache_mp_l2_prefetch_failure_chunks_total"
_DURABLE_SECONDS = 60.0
_PROGRESS_EVERY = 10


class Stack(Protocol):
    """A running engine with vLLM's development endpoints; ``storage_path`` holds its disk tier and keyring."""

    vllm_url: str
    lmcache_url: str
    coordinator_url: str
    redis_url: str
    model_name: str
    chunk_size: int
    storage_path: Path


async def run(settings: Settings, report: Callable[[str], None], cases: int, seed: int | None) -> Report:
    """Run ``cases`` random cases on a stack of its own in a temporary folder; ``report`` gets progress lines."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    report(f"seed {seed}")
    async with own_folder(settings.local_engine.home.absolute(), report) as folder:
        plan = own_plan(settings, folder, report)

        def tell(line: str) -> None:
            # LMCache logs a traceback for each damaged chunk.
            if not line.startswith("lmcache: "):
                report(line)

        async with (
            LocalStack(plan, report=tell) as stack,
            gateway({**engine_variables(stack, folder), **QUIET}, folder / "gateway.log") as endpoint,
        ):
            outcomes = await climb(stack, endpoint.url, cases, seed, report)
            context = {"cwm": __version__, "model": stack.model_name, "machine": platform.machine()}
    return Report(
        "faults",
        {**context, "dtype": plan.dtype, "seed": seed},
        faults.sections(outcomes),
        faults.summary(outcomes),
    )


async def climb(
    stack: Stack, gateway_url: str, cases: int, seed: int, report: Callable[[str], None]
) -> list[CaseOutcome]:
    """Run ``cases`` cases of ``seed`` one after the other, on a running engine through a running gateway.

    Nobody else may use the engine meanwhile, and the gateway needs the variables of ``QUIET``: each case empties the
    engine's memory and counts the chunks that it refuses.
    """
    random = Random(seed)  # noqa: S311 - repeatable, not secret
    outcomes = []
    async with _ladder(stack, gateway_url, random) as ladder:
        for number, case in enumerate(faults.deal(cases, random), 1):
            outcomes.append(await ladder.outcome(case))
            if number % _PROGRESS_EVERY == 0 or number == cases:
                report(f"{number} of {cases} cases, {sum(not o.right for o in outcomes)} served wrong")
    return outcomes


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A window, the continuation of its session, and its stored chunks in each tier."""

    name: str
    token_ids: list[int]
    continuation: list[int]
    stored: Mapping[Tier, Copies]


@asynccontextmanager
async def _ladder(stack: Stack, gateway_url: str, random: Random) -> AsyncIterator[_Ladder]:
    engine = Engine(lmcache_url=stack.lmcache_url, coordinator_url=stack.coordinator_url)
    async with (
        aclosing(LmcacheTier(engine)) as kv_tier,
        agent(gateway_url, stack.model_name) as client,
        Redis.from_url(stack.redis_url) as redis,
    ):
        tiers: dict[Tier, LowerTier] = {
            Tier.REDIS: InRedis(redis),
            Tier.DISK: OnDisk(stack.storage_path / "kv"),
        }
        forger = Forger(stack.storage_path / "kv.keys")
        yield _Ladder(stack, client, kv_tier, tiers, forger, random)


@dataclass(slots=True)
class _Ladder:
    """Runs cases. Windows are reused: after each case their stored chunks are restored byte for byte."""

    stack: Stack
    agent: Agent
    kv_tier: LmcacheTier
    tiers: Mapping[Tier, LowerTier]
    forger: Forger
    random: Random
    windows: dict[int, _Frozen] = field(default_factory=dict)

    async def outcome(self, case: Case) -> CaseOutcome:
        window = await self._window(case.at)
        other = await self._window(case.other) if case.other else window
        if not case.sound_copy:
            await self.tiers[case.other_tier].remove(window.stored[case.other_tier].names)
        changed = await self._damage(case, window.stored[case.tier], other.stored[case.tier])
        await empty_memory(self.agent.http, self.stack)
        signs, session = await self._thaw(window, changed=changed)
        continued = await self.agent.complete(window.token_ids, _COMPARED_TOKENS, session=session)
        if signs.verification == "mismatch":
            # A quarantined window is stored again in the background, and another takes its place.
            await self._durable(window)
            del self.windows[case.at.blocks]
        await stored(self.kv_tier)
        for used in self.windows.values():
            if used in (window, other):
                await self._put_back(used)
        return CaseOutcome(case, signs, continued == window.continuation)

    async def _window(self, position: ChunkPosition) -> _Frozen:
        if position.blocks not in self.windows:
            self.windows[position.blocks] = await self._freeze(position.blocks)
        return self.windows[position.blocks]

    async def _freeze(self, blocks: int) -> _Frozen:
        size = faults.context_length(blocks, self.stack.chunk_size, self.random) - _SAMPLED
        session, ids = await self.agent.fill(self.random.choices(_VOCABULARY, k=size), _SAMPLED)
        continuation = await self.agent.complete(ids, _COMPARED_TOKENS)
        name = f"faults-{uuid4().hex[:12]}"
        await self.agent.tool("window_freeze", session_id=session, window_name=name)
        await stored(self.kv_tier)
        hashes = chunk_hashes(ids, self.stack.chunk_size)[:blocks]
        tier_copies = {tier: await copies(store, hashes) for tier, store in self.tiers.items()}
        return _Frozen(name, ids, continuation, tier_copies)

    async def _damage(self, case: Case, mine: Copies, others: Copies) -> bool:
        """Damage the stored value; return whether it changed."""
        tier, name = self.tiers[case.tier], mine.names[case.at.index]
        values = self._damaged(case, mine, others)
        if not values:
            await tier.remove([name])
            return True
        for damaged, value in values.items():
            await tier.write(damaged, value)
        return values[name] != mine.values[case.at.index]

    def _damaged(self, case: Case, mine: Copies, others: Copies) -> dict[str, bytes]:
        """New values by name; none for a chunk that is deleted."""
        name, value = mine.names[case.at.index], mine.values[case.at.index]
        if case.other is not None:
            other_name, other_value = others.names[case.other.index], others.values[case.other.index]
            if case.fault is Fault.FORGE:
                return {name: self.forger.forged(other_value, other_name, name)}
            return {name: other_value, other_name: value}
        match case.fault:
            case Fault.FLIP:
                return {name: flipped(value, case.share)}
            case Fault.ZERO:
                return {name: zeroed(value)}
            case Fault.TRUNCATE:
                return {name: truncated(value, case.share)}
            case _:
                return {}

    async def _thaw(self, window: _Frozen, *, changed: bool) -> tuple[Signs, str]:
        refusals = await self._refused()
        thawed = await self.agent.tool("window_thaw", window_name=window.name)
        receipt = thawed["receipt"]
        signs = Signs(
            changed,
            thawed["verification"],
            receipt["blocks_found"],
            receipt["blocks_total"],
            receipt["tokens_restored"],
            receipt["tokens_recomputed"],
            await self._refused() - refusals,
            {tier: receipt["tokens_by_tier"].get(tier, 0) for tier in TIERS},
        )
        return signs, thawed["session_id"]

    async def _refused(self) -> int:
        """Chunks that LMCache found in a lower tier and could not load, counted since its start."""
        metrics = (await self.agent.http.get(f"{self.stack.lmcache_url}/metrics")).text
        lines = [line for line in metrics.splitlines() if line.startswith(_REFUSED)]
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        samples = (sample for family in families for sample in family.samples)
        return round(sum(sample.value for sample in samples if sample.labels.get("reason") == "not_found"))

    async def _durable(self, window: _Frozen) -> None:
        async with asyncio.timeout(_DURABLE_SECONDS):
            while (await self.agent.tool("window_status", window_name=window.name))[
                "durability"
            ] != "durable":
                pass

    async def _put_back(self, window: _Frozen) -> None:
        for tier, tier_copies in window.stored.items():
            for name, value in zip(tier_copies.names, tier_copies.values, strict=True):
                await self.tiers[tier].write(name, value)
