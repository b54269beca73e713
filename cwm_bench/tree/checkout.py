"""A conversation of 40 turns on the real engine, continued from each of its turns."""

from __future__ import annotations

import inspect
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from redis.asyncio import Redis

from cwm.adapters.lmcache.client import LmcacheTier
from cwm.domain.prefix import restorable_tokens
from cwm.settings import Engine
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.caches import empty_memory, empty_vllm, stored
from cwm_bench.harness.figures import Section, median, ratio
from cwm_bench.harness.gateway import QUIET, engine_variables, gateway
from cwm_bench.tree.chat import ChatAnswer, chat, user
from cwm_bench.tree.stored import context_bytes, kv_bytes, tree_bytes

TURNS = 40
TOKENS = 8000
_ANSWER_TOKENS = 32
_BRANCH_TOKENS = 16
_REPEATS = 5
_CHARS_A_TOKEN = 3.0
_FRAME_TOKENS = 10  # of the chat template, around a message
_PAGE = 200


class Stack(Protocol):
    vllm_url: str
    lmcache_url: str
    coordinator_url: str
    redis_url: str
    model_name: str
    chunk_size: int
    storage_path: Path


@dataclass(frozen=True, slots=True)
class Checkout:
    """A branch at a recorded turn: ``exact`` when a cold run of the same ids gives the same answer. ``ms`` and ``cold_ms`` of both."""

    turn: int
    prompt_tokens: int
    ms: float
    cold_ms: float
    exact: bool


@dataclass(frozen=True, slots=True)
class TurnReuse:
    """What a turn was answered from: ``parent_at`` of its parent's tokens, and the engine's ``cached_tokens``."""

    parent_at: int
    prompt_tokens: int
    cached_tokens: int

    def error_blocks(self, block: int) -> float:
        """Blocks of KV that the tree predicts, minus those that the engine had. At least one token is computed."""
        reusable = min(self.parent_at, self.prompt_tokens)
        return (restorable_tokens(reusable, block) - self.cached_tokens) / block


@dataclass(slots=True)
class CheckoutFigures:
    """What one run measured; ``kv`` and ``tree`` in bytes, by moment."""

    checkouts: list[Checkout] = field(default_factory=list)
    reuses: list[TurnReuse] = field(default_factory=list)
    last_ms: dict[str, float] = field(default_factory=dict)
    kv: dict[str, int] = field(default_factory=dict)
    tree: int = 0
    tree_with_branches: int = 0
    context: int = 0
    block: int = 0


async def measure(stack: Stack, folder: Path, report: Callable[[str], None]) -> CheckoutFigures:
    """Measure once, through a gateway of its own; ``folder`` gets its registry."""
    engine = Engine(lmcache_url=stack.lmcache_url, coordinator_url=stack.coordinator_url)
    async with (
        aclosing(LmcacheTier(engine)) as kv_tier,
        gateway({**engine_variables(stack, folder), **QUIET}, folder / "gateway.log") as endpoint,
        agent(endpoint.url, stack.model_name) as client,
        Redis.from_url(stack.redis_url) as redis,
    ):
        return await _Tree(stack, client, kv_tier, redis, folder / "cwm.db").measured(report)


@dataclass(slots=True)
class _Tree:
    stack: Stack
    agent: Agent
    kv_tier: LmcacheTier
    redis: Redis
    registry: Path
    session: str = field(default_factory=lambda: f"tree_{uuid4().hex[:12]}")
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[ChatAnswer] = field(default_factory=list)

    async def measured(self, report: Callable[[str], None]) -> CheckoutFigures:
        figures = CheckoutFigures(block=self.stack.chunk_size)
        report(f"a conversation of {TURNS} turns")
        await self._converse()
        last = self.turns[-1]
        figures.tree = tree_bytes(self.registry, self.session)
        figures.context = context_bytes([*last.prompt_ids, *last.token_ids], self.messages)
        figures.kv["conversation"] = await self._kv()
        report(f"{TURNS} windows")
        await self._freeze()
        figures.kv["windows"] = await self._kv()
        report(f"{TURNS} branches")
        branches = [await self._branch(turn) for turn in self.turns]
        figures.kv["branches"] = await self._kv()
        figures.tree_with_branches = tree_bytes(self.registry, self.session)
        figures.reuses = await self._reuses()
        for number, branch in enumerate(branches, 1):
            if number % 10 == 0:
                report(f"{number} of {TURNS} cold runs")
            cold, cold_ms = await self._cold(branch.prompt_ids)
            figures.checkouts.append(
                Checkout(number, len(branch.prompt_ids), branch.whole_ms, cold_ms, cold == branch.token_ids)
            )
        report("the last turn from each place")
        figures.last_ms = await self._last_turn()
        return figures

    async def _converse(self) -> None:
        """An OpenAI client's conversation: each request has all of it."""
        text = inspect.getsource(inspect) + inspect.getsource(platform)
        at = size = 0
        for number in range(TURNS):
            chars = message_chars(TOKENS - size, TURNS - number)
            self.messages.append(user(text[at : at + chars]))
            at += chars
            answer = await chat(self.agent, self.messages, _ANSWER_TOKENS, CWM_Session_Id=self.session)
            self.messages.append({"role": "assistant", "content": answer.text})
            self.turns.append(answer)
            size = len(answer.prompt_ids) + len(answer.token_ids)

    async def _freeze(self) -> None:
        for number, answer in enumerate(self.turns, 1):
            await self.agent.tool(
                "window_freeze",
                session_id=self.session,
                window_name=f"turn-{number}",
                turn=answer.turn,
                retention="best_effort",
            )

    async def _branch(self, turn: ChatAnswer, question: str = "Say it in one word.") -> ChatAnswer:
        """Go on from a turn with a new question, while vLLM's own cache is empty."""
        await stored(self.kv_tier)
        await empty_vllm(self.agent.http, self.stack)
        return await self._ask(turn, question)

    async def _ask(self, turn: ChatAnswer, question: str) -> ChatAnswer:
        target = f"turn:{turn.turn}"
        return await chat(self.agent, [user(question)], _BRANCH_TOKENS, ignore_eos=True, CWM_Continue=target)

    async def _cold(self, prompt: Sequence[int]) -> tuple[list[int], float]:
        """What the engine answers to these ids under a salt of their own, with nothing reused and nothing stored; and ms."""
        body = {
            "model": self.agent.model,
            "prompt": list(prompt),
            "max_tokens": _BRANCH_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": f"cold-{uuid4().hex}",
            "kv_transfer_params": {"lmcache.max_offload_tokens": 0},
        }
        started = time.perf_counter()
        response = await self.agent.http.post(f"{self.stack.vllm_url}/v1/completions", json=body)
        ids: list[int] = response.raise_for_status().json()["choices"][0]["token_ids"]
        return ids, (time.perf_counter() - started) * 1000

    async def _last_turn(self) -> dict[str, float]:
        """Ms to the first token of a branch at the last turn, by where its KV is."""
        last, http = self.turns[-1], self.agent.http
        times: dict[str, list[float]] = {"vllm": [], "cpu": [], "lower": []}
        for number in range(_REPEATS):
            for place, answers in times.items():
                await stored(self.kv_tier)
                if place == "cpu":
                    await empty_vllm(http, self.stack)
                elif place == "lower":
                    await empty_memory(http, self.stack)
                else:
                    await self._ask(last, f"And {number}?")
                answer = await self._ask(last, f"Which of the {number} {place}?")
                answers.append(answer.first_ms)
        return {place: median(answers) for place, answers in times.items()}

    async def _reuses(self) -> list[TurnReuse]:
        log = await self.agent.tool("turn_log", session_id=self.session, limit=_PAGE)
        return [
            TurnReuse(turn["parent_at"], turn["prompt_tokens"], turn["cached_tokens"])
            for turn in log["turns"]
            if turn.get("parent")
        ]

    async def _kv(self) -> int:
        await stored(self.kv_tier)
        return await kv_bytes(self.redis, self.stack.storage_path / "kv")


def message_chars(tokens_left: int, turns_left: int) -> int:
    """Characters of the next message, if ``turns_left`` turns use ``tokens_left`` tokens evenly."""
    tokens = tokens_left / turns_left - _ANSWER_TOKENS - 2 * _FRAME_TOKENS
    return max(1, int(tokens * _CHARS_A_TOKEN))


def summary(figures: CheckoutFigures) -> dict[str, Any]:
    conversation = figures.kv["conversation"]
    largest: float = max((reuse.error_blocks(figures.block) for reuse in figures.reuses), key=abs)
    return {
        "turns": len(figures.checkouts),
        "checkout_exact": sum(checkout.exact for checkout in figures.checkouts),
        "checkout_ms_8k": figures.last_ms["vllm"],
        **{f"checkout_ms_8k_{place}": ms for place, ms in figures.last_ms.items() if place != "vllm"},
        "storage_ratio": ratio(figures.tree, figures.context),
        "storage_ratio_with_branches": ratio(figures.tree_with_branches, figures.context),
        "ref_bytes_share": ratio(figures.kv["windows"] - conversation, conversation),
        "branch_bytes_share": ratio(figures.kv["branches"] - figures.kv["windows"], conversation),
        "prediction_error_blocks": round(largest, 3),
    }


def sections(figures: CheckoutFigures) -> list[Section]:
    return [
        Section(
            "a branch at each turn",
            ("turn", "prompt tokens", "answer ms", "cold ms", "cold / branch", "continues"),
            [
                (each.turn, each.prompt_tokens, round(each.ms, 1), round(each.cold_ms, 1), ratio(each.cold_ms, each.ms),
                 "exact" if each.exact else "DIFFERENT")
                for each in figures.checkouts
            ],
            f"with CWM-Continue, after vLLM's own cache was emptied; {_BRANCH_TOKENS} tokens, greedy; cold: the same ids under "
            "another salt, of which nothing is stored",
        ),
        Section(
            "stored bytes",
            ("what", "bytes"),
            [
                ("turns and messages", figures.tree),
                ("the same with the branches", figures.tree_with_branches),
                ("the last context alone", figures.context),
                *((f"KV: {moment}", size) for moment, size in figures.kv.items()),
            ],
            "tokens and messages compressed; KV in Redis and on disk together, after each step; a window is best_effort",
        ),
    ]  # fmt: skip
