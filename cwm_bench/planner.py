"""``cwm bench planner``: the planner's choices compared with both fixed choices, by size and tier."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.domain.planner import Choice
from cwm.settings import Engine, Settings
from cwm.stack.local import LocalStack
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.caches import empty_vllm, stored
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Report, Section, median, ratio
from cwm_bench.harness.folder import own_folder, own_plan
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway
from cwm_bench.main.windows import TIERS, Bench

SIZES = (256, 512, 1024, 2048, 4096, 8064)
_LESSONS = 4
_HOPELESS = 4.0
_LEAST_ROUNDS = 3
_MOST_TIMES = 8
_MOST_TRIES = 5
_MOST_SECONDS = 120.0
_GOAL = 0.1
_SURE = 1.288  # half the width of the 99 % interval around a median of n values, in square roots of n
# The gateway learns from a thaw after its answer, and gives no sign when it has.
_QUIET_SECONDS = 0.15
# A recompute changes the state of the engine: loads and planned thaws follow it equally often.
_ORDERS = (
    (Choice.LOAD, Choice.AUTO, Choice.RECOMPUTE),
    (Choice.AUTO, Choice.LOAD, Choice.RECOMPUTE),
)


async def run(
    settings: Settings, report: Callable[[str], None], *, rounds: int, sizes: Sequence[int] = SIZES
) -> Report:
    """Measure once, on a stack of its own in a temporary folder; ``report`` gets progress lines. ``sizes`` in tokens."""
    async with own_folder(settings.local_engine.home.absolute(), report) as folder:
        plan = own_plan(settings, folder, report)
        async with LocalStack(plan, report=report) as stack, AsyncExitStack() as resources:
            clients = {choice: await _client(stack, folder, choice, resources) for choice in Choice}
            kv_tier = LmcacheTier(
                Engine(lmcache_url=stack.lmcache_url, coordinator_url=stack.coordinator_url)
            )
            await resources.enter_async_context(aclosing(kv_tier))
            tokens = await read_corpus(stack, max(sizes) + 64)
            bench = PlannerBench(stack, clients[Choice.LOAD], tokens, kv_tier, clients)
            context = {
                "cwm": __version__,
                "model": stack.model_name,
                "machine": platform.machine(),
                "cores": os.cpu_count(),
            }
            section, summary = await bench.regrets(sizes, rounds, report)
            return Report("planner", context, [section], summary)


async def _client(stack: LocalStack, folder: Path, choice: Choice, resources: AsyncExitStack) -> Agent:
    """A client of a gateway with this fixed ``choice``, on the registry of all three."""
    variables = {**engine_variables(stack, folder), **QUIET, "CWM_THAW_PLAN": choice.value}
    endpoint = await resources.enter_async_context(gateway(variables, folder / f"gateway-{choice}.log"))
    return await resources.enter_async_context(agent(endpoint.url, stack.model_name))


@dataclass(slots=True)
class Cell:
    """One size in one tier: durations in ms by choice, and the planner's decisions and prediction errors."""

    times: dict[Choice, list[float]] = field(default_factory=lambda: {choice: [] for choice in Choice})
    decisions: Counter[str] = field(default_factory=Counter)
    errors: list[float] = field(default_factory=list)

    def is_hopeless(self, choice: Choice) -> bool:
        """Whether this fixed choice is so much slower than the other that more rounds would change nothing."""
        other = Choice.LOAD if choice is Choice.RECOMPUTE else Choice.RECOMPUTE
        if choice is Choice.AUTO or min(len(self.times[choice]), len(self.times[other])) < _LEAST_ROUNDS:
            return False
        return median(self.times[choice]) > _HOPELESS * median(self.times[other])

    def note(self, choice: Choice, ms: float, plan: Mapping[str, Any]) -> None:
        self.times[choice].append(ms)
        if choice is Choice.AUTO:
            self.decisions[plan["decision"]] += 1
            if plan["predicted_ms"]:
                self.errors.append(abs(plan["predicted_ms"] / plan["actual_ms"] - 1))

    @property
    def regret(self) -> float:
        """Median over the rounds of planner / better fixed choice of the same round, minus 1."""
        return round(median(self._ratios) - 1, 3)

    @property
    def decision_regret(self) -> float:
        """The regret of the decisions, without the noise of timing the same choice twice.

        Each decision costs the median of its fixed choice. Loading a part is neither fixed choice: it costs the planner's median.
        """
        took = {choice.value: median(self.times[choice]) for choice in (Choice.LOAD, Choice.RECOMPUTE)}
        own = median(self.times[Choice.AUTO])
        cost = sum(took.get(decision, own) * count for decision, count in self.decisions.items())
        return round(cost / self.decisions.total() / min(took.values()) - 1, 3)

    @property
    def spread(self) -> tuple[float, float]:
        """The 99 % interval of the median regret."""
        ordered = sorted(self._ratios)
        half = _SURE * math.sqrt(len(ordered))
        low = max(0, math.floor(len(ordered) / 2 - half))
        high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
        return round(ordered[low] - 1, 3), round(ordered[high] - 1, 3)

    @property
    def is_within_goal(self) -> bool:
        """Whether the whole interval is. A cell is never judged worse early: with many cells and looks, chance puts some above."""
        return self.spread[1] <= _GOAL

    @property
    def _ratios(self) -> list[float]:
        fixed = min((Choice.LOAD, Choice.RECOMPUTE), key=lambda choice: median(self.times[choice]))
        return [
            ratio(auto, best) for auto, best in zip(self.times[Choice.AUTO], self.times[fixed], strict=True)
        ]


@dataclass(slots=True)
class PlannerBench(Bench):
    """``clients`` are clients of three gateways that differ only in CWM_THAW_PLAN."""

    kv_tier: LmcacheTier
    clients: Mapping[Choice, Agent]
    _in_l1: str = ""
    _elsewhere: int = 0

    async def regrets(
        self, sizes: Sequence[int], rounds: int, report: Callable[[str], None]
    ) -> tuple[Section, dict[str, Any]]:
        section = Section(
            "thaw: the planner beside both fixed choices",
            (
                "tokens",
                "tier",
                "load ms",
                "recompute ms",
                "planner ms",
                "regret",
                "99 %",
                "of decisions",
                "chosen",
                "prediction off by",
            ),
            note=f"medians of {rounds} rounds in turns, or up to {_MOST_TIMES} times as many, in {_MOST_SECONDS:.0f} s more, "
            f"until the 99 % lie below {_GOAL}; of {_LEAST_ROUNDS} where a fixed choice is {_HOPELESS:.0f} "
            f"times slower than the other; {_LESSONS} thaws before to learn from; whole tool calls without "
            "verification, vLLM's own cache reset before each; regret: planner / the better fixed choice of the "
            "same round - 1, median; of decisions: the fixed choice that the planner decided for / the better one - 1, "
            "which leaves out the noise between two timings of the same choice",
        )
        summary: dict[str, Any] = {}
        errors: list[float] = []
        decided: list[float] = []
        for size in sizes:
            name = f"bench-{uuid4().hex[:8]}"
            session, _ = await self._fill(size)
            await self.agent.tool("window_freeze", session_id=session, window_name=name, canary=False)
            for tier in TIERS:
                report(f"{size} tokens from {tier}")
                cell = await self._cell(tier, name, rounds)
                report(
                    f"{size} tokens from {tier}: regret {cell.regret}, {len(cell.times[Choice.AUTO])} rounds"
                )
                errors += cell.errors
                decisions = " ".join(
                    f"{count} {decision}" for decision, count in cell.decisions.most_common()
                )
                times = [median(cell.times[c]) for c in (Choice.LOAD, Choice.RECOMPUTE, Choice.AUTO)]
                low, high = cell.spread
                spread = f"{low:.2f} to {high:.2f}"
                section.rows.append(
                    (
                        size,
                        tier,
                        *times,
                        cell.regret,
                        spread,
                        cell.decision_regret,
                        decisions,
                        median(cell.errors or [1.0]),
                    )
                )
                summary[f"regret_{tier}_{size}"] = cell.regret
                decided.append(cell.decision_regret)
        summary["loaded_from_elsewhere"] = self._elsewhere
        summary["prediction_off_by"] = median(errors or [1.0])
        summary["worst_decision_regret"] = max(decided)
        summary["worst_regret"] = max(v for k, v in summary.items() if k.startswith("regret_"))
        return section, summary

    async def _cell(self, tier: str, name: str, rounds: int) -> Cell:
        for _ in range(_LESSONS):
            await self._planned(Choice.AUTO, tier, name)
        cell, until = Cell(), math.inf
        for number in range(_MOST_TIMES * rounds):
            if number == rounds:
                until = time.monotonic() + _MOST_SECONDS
            may_end = number >= rounds and number % len(_ORDERS) == 0
            if may_end and (cell.is_within_goal or time.monotonic() > until):
                break
            for choice in _ORDERS[number % len(_ORDERS)]:
                if not cell.is_hopeless(choice):
                    cell.note(choice, *await self._planned(choice, tier, name))
        return cell

    async def _planned(self, choice: Choice, tier: str, name: str) -> tuple[float, dict[str, Any]]:
        """Milliseconds and plan of a thaw; repeated a few times when it loaded from another tier than ``tier``."""
        for _ in range(_MOST_TRIES):
            ms, receipt = await self._thawed(choice, tier, name)
            if set(receipt["tokens_by_tier"]) <= {tier}:
                break
            # LMCache keeps chunks in L1 that a stalled reader seems to be reading.
            self._elsewhere += 1
        return ms, dict(receipt["plan"])

    async def _thawed(self, choice: Choice, tier: str, name: str) -> tuple[float, dict[str, Any]]:
        await stored(self.kv_tier)
        if tier == "cpu" and self._in_l1 == name:
            await empty_vllm(self.agent.http, self.stack)
        else:
            await self._only(tier, name)
        self._in_l1 = name if tier == "cpu" else ""
        await self._quiet()
        answer, ms = await self.clients[choice].timed_tool("window_thaw", window_name=name, verify=False)
        return ms, answer["receipt"]

    async def _quiet(self) -> None:
        """Return when a thaw's follow-up work has ended: learning from it, and storing."""
        await asyncio.sleep(_QUIET_SECONDS)
        await stored(self.kv_tier)
