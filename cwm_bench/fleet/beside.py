"""The next turn of a conversation whose engine was killed or drained: CWM, and vllm-router over the same two engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import httpx2

from cwm.domain.prefix import restorable_tokens
from cwm.stack.engine import StackEngine
from cwm.stack.errors import StackError
from cwm_bench.fleet.fleet import CHUNK, Fleet, greedy, named
from cwm_bench.fleet.moves import ANSWER_TOKENS, QUESTION_TOKENS, TOKENS
from cwm_bench.fleet.stream import COMPLETIONS, StreamedAnswer, stream
from cwm_bench.harness import vllm_router
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Section, ratio

KILLED, DRAINED = "killed", "drained"
_AGAIN_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 300.0
_BEYOND: Final = 10  # tokens: answers have more, what stack and gateways ask an engine has fewer


class Side(Protocol):
    name: str

    async def ask(self, prompt: Sequence[int]) -> StreamedAnswer:
        """Ask in this side's one conversation; the answer may have a fault."""
        ...

    async def drain(self, engine: StackEngine) -> None:
        """Take the engine out of service with this side's own command."""
        ...

    async def undo(self, engine: StackEngine) -> None: ...


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The first turn after a kill or a drain.

    ``first_ms``: from the first of its ``requests`` to the first token. ``aside_ms``: the drain itself. ``cold_ms``: time to the
    first token of the conversation's opening, without any KV.
    """

    side: str
    after: str
    context_tokens: int
    cached_tokens: int
    requests: int
    first_ms: float
    aside_ms: float
    cold_ms: float

    @property
    def hit_share(self) -> float:
        """Of the context's whole blocks."""
        whole = restorable_tokens(self.context_tokens, CHUNK)
        return ratio(min(self.cached_tokens, whole), whole)


@dataclass(slots=True)
class _Cwm:
    fleet: Fleet
    session: str
    name: str = "CWM"

    async def ask(self, prompt: Sequence[int]) -> StreamedAnswer:
        client = self.fleet.next_agent()
        body = greedy(client.model, prompt, ANSWER_TOKENS)
        return await stream(client.http, client.url, COMPLETIONS, body, named(self.session))

    async def drain(self, engine: StackEngine) -> None:
        await self.fleet.next_agent().tool("engine_drain", engine=engine.name)

    async def undo(self, engine: StackEngine) -> None:
        await self.fleet.next_agent().tool("engine_drain", engine=engine.name, undo=True)


@dataclass(slots=True)
class _Router:
    http: httpx2.AsyncClient
    url: str
    model: str
    session: str
    name: str = "vllm-router"

    async def ask(self, prompt: Sequence[int]) -> StreamedAnswer:
        body = greedy(self.model, prompt, ANSWER_TOKENS)
        return await stream(self.http, self.url, COMPLETIONS, body, {"x-session-id": self.session})

    async def drain(self, engine: StackEngine) -> None:
        await self._post("remove_worker", engine)

    async def undo(self, engine: StackEngine) -> None:
        await self._post("add_worker", engine)

    async def _post(self, what: str, engine: StackEngine) -> None:
        answer = await self.http.post(f"{self.url}/{what}", params={"url": engine.vllm_url})
        answer.raise_for_status()


async def measure(fleet: Fleet, folder: Path) -> tuple[Section, dict[str, Any]]:
    corpus = await read_corpus(fleet.stack, 2 * TOKENS + 8 * QUESTION_TOKENS)
    half = len(corpus) // 2
    turns = await _turns(fleet, _Cwm(fleet, fleet.session()), list(corpus[:half]))
    reason = ""
    try:
        async with _router(fleet, folder) as router:
            turns += await _turns(fleet, router, list(corpus[half:]))
    except (StackError, RuntimeError, TimeoutError) as missing:
        reason = str(missing) or f"it did not answer in {_PATIENCE_SECONDS:g} s"
        fleet.report(f"vllm-router is left out: {reason}")
    return figures(turns, reason)


@asynccontextmanager
async def _router(fleet: Fleet, folder: Path) -> AsyncIterator[_Router]:
    fleet.report(f"installing {vllm_router.PACKAGE}")
    program = await asyncio.to_thread(vllm_router.installed, folder / "vllm-router")
    engines = [engine.vllm_url for engine in fleet.small_engines]
    async with vllm_router.vllm_router(program, engines, folder / "vllm-router.log") as url:
        yield _Router(fleet.http, url, fleet.stack.model_name, f"fleet_{uuid4().hex[:12]}")


async def _turns(fleet: Fleet, side: Side, corpus: list[int]) -> list[NextTurn]:
    """Open a conversation, kill its engine and go on, then drain its engine and go on."""
    fleet.report(f"{side.name}: a conversation of {TOKENS:,} tokens")
    context, corpus = corpus[:TOKENS], corpus[TOKENS:]
    before = await _answered(fleet)
    opening, _, cold_ms = await _next(side, context)
    context += opening.ids
    turns = []
    for after in (KILLED, DRAINED):
        engine = await _busiest(fleet, before)
        await fleet.empty(fleet.other(engine))
        fleet.report(f"{side.name}: {engine.name} is {after}")
        started = time.perf_counter()
        await (fleet.kill(engine) if after is KILLED else side.drain(engine))
        aside_ms = (time.perf_counter() - started) * 1000 if after is DRAINED else 0.0
        prompt = [*context, *corpus[:QUESTION_TOKENS]]
        before = await _answered(fleet, but=engine)
        answer, requests, first_ms = await _next(side, prompt)
        turns.append(
            NextTurn(
                side.name,
                after,
                len(context),
                answer.cached_tokens,
                requests,
                first_ms,
                aside_ms,
                cold_ms,
            )
        )
        context, corpus = [*prompt, *answer.ids], corpus[QUESTION_TOKENS:]
        if after is KILLED:
            await fleet.back()
        else:
            await side.undo(engine)
    return turns


async def _next(side: Side, prompt: Sequence[int]) -> tuple[StreamedAnswer, int, float]:
    """Repeat the request until its answer is whole. Returns the answer, the number of requests and ms to the first token."""
    started = time.perf_counter()
    requests = 0
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            start, requests = time.perf_counter(), requests + 1
            answer = await side.ask(prompt)
            if answer.is_whole:
                return answer, requests, (start - started) * 1000 + answer.first_ms
            await asyncio.sleep(_AGAIN_SECONDS)


async def _answered(fleet: Fleet, but: StackEngine | None = None) -> dict[str, int]:
    """Requests that each engine of the small model has answered since its vLLM started; of one that was ``but`` just killed, none."""
    return {
        each.name: 0 if each is but else await fleet.answered(each, _BEYOND) for each in fleet.small_engines
    }


async def _busiest(fleet: Fleet, before: dict[str, int]) -> StackEngine:
    """The engine that has answered more requests since then."""
    now = await _answered(fleet)
    return max(fleet.small_engines, key=lambda each: now[each.name] - before[each.name])


def figures(turns: Sequence[NextTurn], reason: str) -> tuple[Section, dict[str, Any]]:
    """``reason``: why vllm-router was left out; empty if it was not."""
    section = Section(
        f"beside vllm-router: the next turn of a conversation of {TOKENS:,} tokens",
        (
            "side",
            "its engine was",
            "tokens",
            "cached",
            "hits",
            "requests",
            "first token ms",
            "drain ms",
            "cold ms",
        ),
        [
            (
                turn.side,
                turn.after,
                turn.context_tokens,
                turn.cached_tokens,
                turn.hit_share,
                turn.requests,
                round(turn.first_ms, 1),
                round(turn.aside_ms, 1),
                round(turn.cold_ms, 1),
            )
            for turn in turns
        ],
        note=f"{vllm_router.PACKAGE} with {vllm_router.POLICY} and x-session-id, its defaults otherwise, over the same two engines with the same LMCache servers; killed: SIGKILL to vLLM, which starts "
        f"again by itself; drained: engine_drain, and remove_worker. Asked at once, and again every {_AGAIN_SECONDS:g} s while it failed. The other engine's vLLM and LMCache were emptied before. "
        f"Hits: of the whole blocks{f'. vllm-router was left out: {reason}' if reason else ''}",
    )
    return section, {
        "beside": {
            f"{turn.side} {turn.after}": {
                "hit_share": turn.hit_share,
                "ttft_ms": round(turn.first_ms, 1),
                "requests": turn.requests,
            }
            for turn in turns
        },
        **({"vllm_router": f"left out: {reason}"} if reason else {}),
    }
