"""Drains an engine that serves several sessions, and measures the turns after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from cwm.domain.prefix import restorable_tokens
from cwm_bench.fleet.fleet import CHUNK, Fleet
from cwm_bench.fleet.moves import ANSWER_TOKENS, QUESTION_TOKENS
from cwm_bench.fleet.stream import StreamedAnswer
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Section, median

SIZES: Final = (700, 1_000, 1_300, 1_600, 1_900, 2_200)


@dataclass(frozen=True, slots=True)
class TurnAfterDrain:
    """``undisturbed``: the same turn past the gateways."""

    context_tokens: int
    answer: StreamedAnswer
    undisturbed: StreamedAnswer

    @property
    def is_cold(self) -> bool:
        """Whether more was computed than the tail block and the question."""
        return self.answer.cached_tokens < restorable_tokens(self.context_tokens, CHUNK)

    @property
    def is_exact(self) -> bool:
        return self.answer.equals(self.undisturbed)


async def measure(fleet: Fleet) -> tuple[Section, dict[str, Any]]:
    engine = fleet.small_engines[0]
    target = fleet.other(engine)
    corpus = await read_corpus(fleet.stack, sum(SIZES) + QUESTION_TOKENS * len(SIZES))
    question, at = list(corpus[:QUESTION_TOKENS]), QUESTION_TOKENS
    contexts: dict[str, list[int]] = {}
    for size in SIZES:
        session, prompt = fleet.session(), list(corpus[at : at + size])
        at += size
        fleet.report(f"a session of {size:,} tokens on {engine.name}")
        contexts[session] = [*prompt, *(await fleet.turn(session, prompt, ANSWER_TOKENS)).ids]
        await fleet.place(session, engine)
    await fleet.empty(target)
    fleet.report(f"draining {engine.name}")
    started = time.perf_counter()
    drained = await fleet.next_agent().tool("engine_drain", engine=engine.name)
    drain_ms = (time.perf_counter() - started) * 1000
    try:
        turns = [
            (session, context, await fleet.turn(session, [*context, *question], ANSWER_TOKENS))
            for session, context in contexts.items()
        ]
        session_count = await _sessions(fleet, engine.name)
    finally:
        await fleet.next_agent().tool("engine_drain", engine=engine.name, undo=True)
    after = []
    for _, context, answer in turns:
        salt = f"undisturbed-{uuid4().hex}"
        undisturbed = await fleet.alone(engine, [*context, *question], ANSWER_TOKENS, salt)
        after.append(TurnAfterDrain(len(context), answer, undisturbed))
    return figures(after, drained, drain_ms, session_count)


async def _sessions(fleet: Fleet, engine: str) -> int:
    (entry,) = (await fleet.next_agent().tool("engine_list", engine=engine))["engines"]
    return int(entry["sessions"])


def figures(
    turns: Sequence[TurnAfterDrain], drained: dict[str, Any], drain_ms: float, session_count: int
) -> tuple[Section, dict[str, Any]]:
    """``session_count``: sessions on the engine after those turns."""
    section = Section(
        f"drain: {len(turns)} sessions leave an engine",
        ("tokens", "turn cached", "computed", "first token ms", "answer"),
        [
            (
                turn.context_tokens,
                turn.answer.cached_tokens,
                turn.answer.prompt_tokens - turn.answer.cached_tokens,
                round(turn.answer.first_ms, 1),
                "COLD" if turn.is_cold else "as undisturbed" if turn.is_exact else "DIFFERENT",
            )
            for turn in turns
        ],
        note=f"the turn after the drain, with a question of {QUESTION_TOKENS} tokens; the other engine's vLLM and LMCache were emptied before. The drain took {drain_ms:,.0f} ms, "
        f"moved {drained['moved']} and left {len(drained['stayed'])}; after the turns the engine has {session_count} sessions",
    )
    return section, {
        "drained": len(turns),
        "cold_after_drain": sum(turn.is_cold for turn in turns),
        "exact_after_drain": sum(turn.is_exact for turn in turns),
        "stayed_at_drain": len(drained["stayed"]),
        "drain_ms": round(drain_ms, 1),
        "ttft_ms_after_drain": median([turn.answer.first_ms for turn in turns]),
    }
