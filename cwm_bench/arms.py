"""``cwm bench arms``: the same prompts without a cache, cold, warm, and warm after the engine was killed."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.settings import Engine, Settings
from cwm.stack.local import LocalStack
from cwm.stack.plan import StackPlan
from cwm_bench.harness.agent import Agent, Streamed, agent
from cwm_bench.harness.bare_engine import bare_engine
from cwm_bench.harness.caches import empty_memory, stored
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Report, Section, median, ratio
from cwm_bench.harness.folder import own_folder, own_plan
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway

SIZES = (512, 1024, 1536, 2048, 3072, 4096)
REPEATS = 3
_ANSWER_TOKENS = 32


class Arm(StrEnum):
    CACHE_OFF = "cache_off"
    COLD = "cold"
    WARM_SAME_PROCESS = "warm_same_process"
    WARM_AFTER_RESTART = "warm_after_restart"


@dataclass(slots=True)
class Prompt:
    """A prompt, its window, and its answers in each arm; ``thaws`` holds the answers of ``window_thaw``."""

    ids: list[int]
    window: str
    answers: dict[Arm, list[Streamed]] = field(default_factory=lambda: {arm: [] for arm in Arm})
    thaws: list[dict[str, Any]] = field(default_factory=list)

    def first_ms(self, arm: Arm) -> float:
        return median([answer.first_ms for answer in self.answers[arm]])

    def whole_ms(self, arm: Arm) -> float:
        return median([answer.whole_ms for answer in self.answers[arm]])

    def same(self, arm: Arm) -> int:
        """How many answers of this arm equal, token for token, the first answer without a cache."""
        expected_ids = self.answers[Arm.CACHE_OFF][0].token_ids
        return sum(answer.token_ids == expected_ids for answer in self.answers[arm])


async def run(settings: Settings, report: Callable[[str], None]) -> tuple[Report, bool]:
    """Measure all arms once, in a temporary folder; ``report`` gets progress lines.

    The flag is False when continuations differ although the engine computes in float32.
    """
    async with own_folder(settings.local_engine.home.absolute(), report) as folder:
        plan = own_plan(settings, folder, report)
        async with LocalStack(plan, report=report) as stack:
            prompts = await _with_cache(stack, folder, report)
            model = stack.model_name
        await _without_cache(plan, model, folder, prompts, report)
    context = {"cwm": __version__, "model": model, "machine": platform.machine(), "dtype": plan.dtype}
    arms = summary(prompts)
    sound = plan.dtype != "float32" or all(figures["identical"] for figures in arms.values())
    return Report("arms", context, sections(prompts), arms), sound


async def _with_cache(stack: LocalStack, folder: Path, report: Callable[[str], None]) -> list[Prompt]:
    """The three arms with a cache, on one engine and one gateway.

    Sessions share no KV here (``CWM_CACHE_SCOPE=session``): the first turn of each has a fresh salt.
    """
    variables = {**engine_variables(stack, folder), **QUIET, "CWM_CACHE_SCOPE": "session"}
    engine = Engine(lmcache_url=stack.lmcache_url, coordinator_url=stack.coordinator_url)
    text = iter(await read_corpus(stack, sum(SIZES)))
    async with (
        aclosing(LmcacheTier(engine)) as kv_tier,
        gateway(variables, folder / "gateway.log") as endpoint,
        agent(endpoint.url, stack.model_name) as client,
    ):
        arms = _Arms(stack, client, kv_tier)
        report("freezing the prompts")
        prompts = [await arms.prompt(list(islice(text, size - 1))) for size in SIZES]
        for turn in range(REPEATS):
            report(f"cold, then warm in the same process ({turn + 1} of {REPEATS})")
            for prompt in prompts:
                await arms.cold_and_warm(prompt)
        report("killing vLLM and LMCache")
        await stack.kill("vllm")
        await stack.kill("lmcache")
        await stack.wait_ready()
        for turn in range(REPEATS):
            report(f"warm after the restart ({turn + 1} of {REPEATS})")
            for prompt in prompts:
                await arms.thawed(prompt)
    return prompts


async def _without_cache(
    plan: StackPlan, model: str, folder: Path, prompts: list[Prompt], report: Callable[[str], None]
) -> None:
    """The arm without a cache, through the same kind of gateway."""
    async with bare_engine(plan, folder, report) as url:
        variables = {
            **QUIET,
            "CWM_VLLM_URL": url,
            "CWM_LMCACHE_URL": "none",
            "CWM_COORDINATOR_URL": "none",
            "CWM_DB_PATH": str(folder / "off.db"),
            "CWM_SECRET_FILE": str(folder / "secret"),
        }
        async with gateway(variables, folder / "off.log") as endpoint, agent(endpoint.url, model) as client:
            for turn in range(REPEATS):
                report(f"without a cache ({turn + 1} of {REPEATS})")
                for prompt in prompts:
                    answer = await client.stream(prompt.ids, _ANSWER_TOKENS, session=_session())
                    prompt.answers[Arm.CACHE_OFF].append(answer)


@dataclass(frozen=True, slots=True)
class _Arms:
    stack: LocalStack
    agent: Agent
    kv_tier: LmcacheTier

    async def prompt(self, text: list[int]) -> Prompt:
        """A prompt of ``text`` and one sampled token, which is the whole context of a frozen session."""
        session, ids = await self.agent.fill(text, 1)
        window = f"arms-{len(ids)}"
        await self.agent.tool("window_freeze", session_id=session, window_name=window)
        return Prompt(ids, window)

    async def cold_and_warm(self, prompt: Prompt) -> None:
        """Send a new session's first turn while all caches are empty, then the same turn again."""
        await self._empty()
        session = _session()
        for arm in (Arm.COLD, Arm.WARM_SAME_PROCESS):
            answer = await self.agent.stream(prompt.ids, _ANSWER_TOKENS, session=session)
            prompt.answers[arm].append(answer)
            await stored(self.kv_tier)

    async def thawed(self, prompt: Prompt) -> None:
        """Thaw from the lower tiers and continue; the time to the first token includes the thaw."""
        await self._empty()
        thawed, ms = await self.agent.timed_tool("window_thaw", window_name=prompt.window)
        if thawed["partial"] or thawed["verification"] not in {"exact", "within_noise"}:
            raise RuntimeError(f"a thaw of {len(prompt.ids)} tokens was not whole: {thawed}")
        answer = await self.agent.stream(prompt.ids, _ANSWER_TOKENS, session=thawed["session_id"])
        prompt.thaws.append({**thawed, "ms": ms, "first_ms": answer.first_ms})
        prompt.answers[Arm.WARM_AFTER_RESTART].append(
            replace(answer, first_ms=ms + answer.first_ms, whole_ms=ms + answer.whole_ms)
        )

    async def _empty(self) -> None:
        await stored(self.kv_tier)
        await empty_memory(self.agent.http, self.stack)


def summary(prompts: list[Prompt]) -> dict[str, dict[str, Any]]:
    """Medians over the prompts; each prompt's figure is the median of its repeats."""
    return {
        arm.value: {
            "ttft_ms_median": median([prompt.first_ms(arm) for prompt in prompts]),
            "total_ms_median": median([prompt.whole_ms(arm) for prompt in prompts]),
            "speedup_over_cold": median(
                [ratio(prompt.first_ms(Arm.COLD), prompt.first_ms(arm)) for prompt in prompts]
            ),
            "identical": all(prompt.same(arm) == len(prompt.answers[arm]) for prompt in prompts),
        }
        for arm in Arm
    }


def sections(prompts: list[Prompt]) -> list[Section]:
    return [
        _times(
            "time to the first token, ms",
            "through a gateway each. cache_off: a vLLM of its own without prefix caching and LMCache; cold: a fresh "
            "salt, all caches empty; warm_same_process: the same request again; warm_after_restart: vLLM and LMCache "
            "killed, then thaw, its verification, and the request",
            prompts,
            Prompt.first_ms,
        ),
        _times(
            f"whole answer of {_ANSWER_TOKENS} tokens, ms", "as above, to the end", prompts, Prompt.whole_ms
        ),
        _identity(prompts),
        _thaws(prompts),
    ]


def _times(title: str, note: str, prompts: list[Prompt], ms: Callable[[Prompt, Arm], float]) -> Section:
    warm = (Arm.WARM_SAME_PROCESS, Arm.WARM_AFTER_RESTART)
    section = Section(title, ("tokens", *Arm, *(f"cold / {arm}" for arm in warm)))
    section.note = f"medians of {REPEATS}; {note}"
    for prompt in prompts:
        cold = ms(prompt, Arm.COLD)
        ratios = (ratio(cold, ms(prompt, arm)) for arm in warm)
        section.rows.append((len(prompt.ids), *(ms(prompt, arm) for arm in Arm), *ratios))
    return section


def _identity(prompts: list[Prompt]) -> Section:
    section = Section("identical continuations", ("tokens", *Arm))
    section.note = "greedy, token for token as the first answer without a cache"
    for prompt in prompts:
        counts = (f"{prompt.same(arm)} of {len(prompt.answers[arm])}" for arm in Arm)
        section.rows.append((len(prompt.ids), *counts))
    return section


def _thaws(prompts: list[Prompt]) -> Section:
    section = Section(
        "warm_after_restart in parts",
        ("tokens", "restored", "from", "thaw ms", "of it verification ms", "first token after it ms"),
    )
    for prompt in prompts:
        receipts = [thaw["receipt"] for thaw in prompt.thaws]
        tiers: Counter[str] = Counter(tier for receipt in receipts for tier in receipt["tokens_by_tier"])
        section.rows.append(
            (
                len(prompt.ids),
                min(receipt["tokens_restored"] for receipt in receipts),
                ", ".join(sorted(tiers)),
                median([thaw["ms"] for thaw in prompt.thaws]),
                median([receipt["verification"]["verify_ms"] for receipt in receipts]),
                median([thaw["first_ms"] for thaw in prompt.thaws]),
            )
        )
    return section


def _session() -> str:
    return f"arms_{uuid4().hex[:12]}"
