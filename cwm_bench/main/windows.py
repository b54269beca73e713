"""Freeze and thaw on the real engine, by size and tier, compared with a cold prefill of the same tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

import httpx2
import redis.asyncio as redis

from cwm.domain.prefix import TokenIds, stored_chunks
from cwm_bench.harness.agent import Agent
from cwm_bench.harness.caches import empty_l1, empty_vllm
from cwm_bench.harness.figures import Section, median, ratio
from cwm_bench.main.parts import Repetitions

SIZES = (1024, 2048, 4096, 8064)
TIERS = ("cpu", "redis", "disk")
_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 0.01
# llama.cpp's slot restore on the same kind of machine (2 cores, 135 M model, Q4_1): restore and one token.
_SLOT_RESTORE_MS = {1024: 30, 4096: 64}


@dataclass(frozen=True, slots=True)
class _FreezeCase:
    """How a context is frozen: right after its last turn, or ``settled``, once the lower tiers have that turn.

    A settled one has the tokens of the one before it: the engine need not compute them again.
    """

    key: str
    column: str
    settled: bool = False
    canary: bool = False
    at_end: bool = False


_FREEZES = (
    _FreezeCase("freeze_ms", "durable ms"),
    _FreezeCase("freeze_settled_ms", "settled ms", settled=True),
    _FreezeCase("freeze_canary_ms", "with canary ms", settled=True, canary=True),
    _FreezeCase("freeze_block_end_ms", "at a block's end ms", at_end=True),
)


class Stack(Protocol):
    vllm_url: str
    lmcache_url: str
    redis_url: str
    model_name: str
    chunk_size: int


@dataclass(slots=True)
class Bench:
    """A gateway, its engine, and the tokens that fill contexts."""

    stack: Stack
    agent: Agent
    corpus: TokenIds

    async def freezes(
        self, repetitions: Repetitions, report: Callable[[str], None]
    ) -> tuple[Section, dict[str, Any]]:
        section = Section(
            "freeze: until proven by prefetch, and until acknowledged",
            ("tokens", "blocks", *(kind.column for kind in _FREEZES), "acknowledged ms"),
            note=f"medians of {_each(repetitions.freezes)}, after a freeze that is not counted; a context that nothing was stored of, "
            "frozen right after its last turn, and the same one frozen (settled, and with a canary) once the engine had stored "
            "that turn. At a block's end, half a block longer and another context: the last token, sampled and not computed, "
            "would complete one",
        )
        summary: dict[str, Any] = {}
        report("an uncounted freeze: a gateway's first tool call loads its token vocabulary")
        await self._freeze(self._in_block(SIZES[0]), _FREEZES[0], windows := list[str]())
        for size, rounds in zip(SIZES, repetitions.freezes, strict=True):
            milliseconds: dict[str, list[float]] = {kind.key: [] for kind in _FREEZES}
            acknowledged: list[float] = []
            in_block = self._in_block(size)
            blocks = 0
            report(f"freezing {in_block} tokens")
            for _ in range(rounds):
                for kind in _FREEZES:
                    frozen, ms = await self._freeze(size if kind.at_end else in_block, kind, windows)
                    milliseconds[kind.key].append(ms)
                    if kind is _FREEZES[0]:
                        blocks = frozen["block_count"]
                        acknowledged.append(await self._acknowledge(frozen["window_name"], windows))
            medians = {key: median(times) for key, times in milliseconds.items()}
            section.rows.append((in_block, blocks, *medians.values(), median(acknowledged)))
            summary |= {f"{key}_{size}": ms for key, ms in medians.items()}
            summary[f"freeze_acknowledged_ms_{size}"] = median(acknowledged)
        await self._delete(windows)
        return section, summary

    async def thaws(
        self, repetitions: Repetitions, report: Callable[[str], None]
    ) -> tuple[Section, dict[str, Any]]:
        section = Section(
            "thaw against a cold prefill of the same tokens",
            (
                "tokens",
                "tier",
                "cold ms",
                "thaw ms",
                "speed-up",
                "engine alone ms",
                "thaw / engine",
                "verified ms",
                "slot restore ms",
            ),
            note=f"medians of {repetitions.thaws}, taken in turns, of the cold ones {_each(repetitions.cold_prefills)}; vLLM's own cache reset before each. "
            "Half a block is left to compute, as on average. Slot restore: llama.cpp, measured apart",
        )
        summary: dict[str, Any] = {}
        for size, cold_prefills in zip(SIZES, repetitions.cold_prefills, strict=True):
            name = f"bench-{uuid4().hex[:8]}"
            tokens = self._in_block(size)
            session, ids = await self._fill(tokens)
            await self.agent.tool("window_freeze", session_id=session, window_name=name)
            report(f"computing {tokens} tokens")
            cold = partial(cold_prefill, self.agent.http, self.stack.vllm_url, self.stack.model_name, ids)
            (cold_ms,) = await _medians(cold_prefills, cold)
            for tier in TIERS:
                report(f"thawing {tokens} tokens from {tier}")
                prepare = partial(self._only, tier, name)
                thaw, alone, verified = await _medians(
                    repetitions.thaws,
                    partial(self._thaw, name),
                    partial(self.agent.complete, ids, 1),
                    partial(self._thaw, name, verify=True),
                    before=prepare,
                )
                section.rows.append(
                    (
                        tokens,
                        tier,
                        cold_ms,
                        thaw,
                        ratio(cold_ms, thaw),
                        alone,
                        ratio(thaw, alone),
                        verified,
                        _SLOT_RESTORE_MS.get(size, "-"),
                    )
                )
                summary[f"speed_up_{tier}_{size}"] = ratio(cold_ms, thaw)
                summary[f"thaw_to_engine_{tier}_{size}"] = ratio(thaw, alone)
                summary[f"speed_up_verified_{tier}_{size}"] = ratio(cold_ms, verified)
        return section, summary

    def _in_block(self, size: int) -> int:
        return size - self.stack.chunk_size // 2

    async def _fill(self, size: int) -> tuple[str, list[int]]:
        """A session of exactly ``size`` tokens, the last one sampled; its id and its tokens."""
        return await self.agent.fill(self.corpus[: size - 1], 1)

    async def _freeze(self, size: int, kind: _FreezeCase, windows: list[str]) -> tuple[dict[str, Any], float]:
        """The answer, and ms until it came; ``windows`` are those of the context so far, which goes with them."""
        if not kind.settled:
            # A full tier would be what this freeze measures.
            await self._delete(windows)
            self.corpus = self.corpus[7:] + self.corpus[:7]
        session, _ = await self._fill(size)
        if kind.settled:
            await self._settled(session, stored_chunks(size, self.stack.chunk_size))
        windows.append(f"bench-{uuid4().hex[:12]}")
        return await self.agent.timed_tool(
            "window_freeze", session_id=session, window_name=windows[-1], canary=kind.canary
        )

    async def _settled(self, session: str, blocks: int) -> None:
        """Return when both lower tiers have every block: the engine has computed and stored the whole turn."""
        async with asyncio.timeout(_SETTLE_SECONDS):
            while True:
                status = await self.agent.tool("window_status", session_id=session)
                tiers = status["kv_cache"].get("tiers", {})
                if tiers.get("redis") == tiers.get("disk") == blocks:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def _acknowledge(self, window: str, windows: list[str]) -> float:
        """Milliseconds until a freeze of the same context without ``wait`` is answered."""
        session = (await self.agent.tool("window_thaw", window_name=window))["session_id"]
        windows.append(name := f"bench-{uuid4().hex[:12]}")
        _, ms = await self.agent.timed_tool("window_freeze", session_id=session, window_name=name, wait=False)
        while (await self.agent.tool("window_status", window_name=name))["durability"] == "pending":
            pass
        return ms

    async def _delete(self, windows: list[str]) -> None:
        while windows:
            await self.agent.tool("window_delete", window_name=windows.pop(), force=True)

    async def _thaw(self, name: str, *, verify: bool = False) -> None:
        thawed = await self.agent.tool("window_thaw", window_name=name, verify=verify)
        if thawed["partial"]:
            raise RuntimeError(f"a block is missing: {thawed['warning']}")
        if verify and thawed["verification"] not in {"exact", "within_noise"}:
            raise RuntimeError(f"the restored KV was not verified: {thawed['receipt']['verification']}")

    async def _only(self, tier: str, name: str) -> None:
        """Leave the window's chunks only in this tier and those below it."""
        if tier == "cpu":
            await self._thaw(name)
        await empty_vllm(self.agent.http, self.stack)
        if tier == "cpu":
            return
        await empty_l1(self.agent.http, self.stack)
        if tier == "disk":
            async with redis.Redis.from_url(self.stack.redis_url) as shared:
                await shared.flushdb()


async def cold_prefill(http: httpx2.AsyncClient, vllm_url: str, model: str, ids: Sequence[int]) -> None:
    """Straight on vLLM, under a salt that nothing is stored for."""
    salt = f"bench-{uuid4().hex}"
    body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    (await http.post(f"{vllm_url}/v1/completions", json=body)).raise_for_status()


async def _medians(
    rounds: int, *actions: Callable[[], Awaitable[Any]], before: Callable[[], Awaitable[None]] | None = None
) -> list[float]:
    """Median ms of each action, in turns; ``before`` runs before each, untimed."""
    milliseconds: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, times in zip(actions, milliseconds, strict=True):
            if before is not None:
                await before()
            started = time.perf_counter()
            await action()
            times.append((time.perf_counter() - started) * 1000)
    return [median(times) for times in milliseconds]


def _each(counts: Sequence[int]) -> str:
    """Of several sizes, in their order; one number where all have the same."""
    return str(counts[0]) if len(set(counts)) == 1 else f"{', '.join(map(str, counts))} by size"
