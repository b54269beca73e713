"""Moves one long conversation between two engines; compares with thaws and cold prefills of the same tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

from cwm.domain.prefix import restorable_tokens, stored_chunks
from cwm_bench.fleet.fleet import CHUNK, Fleet
from cwm_bench.fleet.stream import StreamedAnswer
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Section, median, ratio

TOKENS: Final = 6_000
QUESTION_TOKENS: Final = 24
ANSWER_TOKENS: Final = 16
_THAWS: Final = 5
_COLD: Final = 3


@dataclass(frozen=True, slots=True)
class MovedTurn:
    """A move of ``context_tokens`` and the turn after it. ``move_ms`` as the caller saw it, ``first_ms`` of the turn's first token."""

    receipt: dict[str, Any]
    context_tokens: int
    cached_tokens: int
    move_ms: float
    first_ms: float
    as_undisturbed: bool

    @property
    def hit_tokens(self) -> int:
        """Tokens in whole blocks of the context that the turn did not compute."""
        return min(self.cached_tokens, restorable_tokens(self.context_tokens, CHUNK))

    @property
    def restored_all(self) -> bool:
        """Everything but the tail block."""
        whole = restorable_tokens(self.context_tokens, CHUNK)
        blocks = stored_chunks(self.context_tokens, CHUNK)
        counts = (self.receipt["blocks_found"], self.receipt["blocks_total"], self.receipt["tokens_restored"])
        return self.receipt["token_count"] == self.context_tokens and counts == (blocks, blocks, whole)

    @property
    def is_exact(self) -> bool:
        canary: str = self.receipt["canary"]["result"]
        return self.restored_all and canary in {"exact", "within_noise"} and self.as_undisturbed


@dataclass(slots=True)
class MoveFigures:
    """``thaws``: ms of each thaw and of the first token of the turn after it; ``cold_ms``: of the first token without any KV."""

    turns: list[MovedTurn] = field(default_factory=list)
    thaws: list[tuple[float, float]] = field(default_factory=list)
    cold_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """A turn of the undisturbed conversation."""

    prompt: list[int]
    answer: StreamedAnswer

    @property
    def context(self) -> list[int]:
        return [*self.prompt, *self.answer.ids]


async def measure(fleet: Fleet, moves: int) -> tuple[Section, dict[str, Any]]:
    result = MoveFigures()
    corpus = await read_corpus(fleet.stack, TOKENS + (moves + 2) * QUESTION_TOKENS)
    fleet.report(f"a conversation of {TOKENS:,} tokens and {moves + 1} turns that nothing disturbs")
    steps = await _undisturbed(fleet, corpus, moves + 2)
    result.cold_ms = [steps[0].answer.first_ms]
    for _ in range(_COLD - 1):
        cold = await fleet.alone(fleet.small_engines[0], steps[0].prompt, 1, f"cold-{uuid4().hex}")
        result.cold_ms.append(cold.first_ms)
    session = fleet.session()
    fleet.report("the same conversation through the gateways")
    await fleet.turn(session, steps[0].prompt, ANSWER_TOKENS)
    await fleet.place(session, fleet.small_engines[0])
    for number, (before, step) in enumerate(pairwise(steps[: moves + 1]), 1):
        turn = await _moved(fleet, session, number, before, step)
        result.turns.append(turn)
        fleet.report(
            f"move {number} of {moves}: {turn.move_ms:.0f} ms, first token {turn.first_ms:.0f} ms, "
            f"{'exact' if turn.is_exact else f'NOT EXACT: {turn.receipt}'}"
        )
    result.thaws = await _thaws(fleet, session, steps[moves + 1])
    return section(result), summary(result)


async def _undisturbed(fleet: Fleet, corpus: Sequence[int], turns: int) -> list[_Step]:
    """Hold the conversation on one engine, past the gateways."""
    salt, steps = f"undisturbed-{uuid4().hex}", list[_Step]()
    prompt = list(corpus[:TOKENS])
    for number in range(turns):
        steps.append(_Step(prompt, await fleet.alone(fleet.small_engines[0], prompt, ANSWER_TOKENS, salt)))
        at = TOKENS + number * QUESTION_TOKENS
        prompt = [*steps[-1].context, *corpus[at : at + QUESTION_TOKENS]]
    return steps


async def _moved(fleet: Fleet, session: str, number: int, before: _Step, step: _Step) -> MovedTurn:
    """Move the session to an engine that has none of its KV, and go on there."""
    target = fleet.small_engines[number % 2]
    await fleet.empty(target)
    receipt, move_ms = await fleet.next_agent().timed_tool(
        "session_move", session_id=session, engine=target.name
    )
    answer = await fleet.turn(session, step.prompt, ANSWER_TOKENS)
    return MovedTurn(
        receipt,
        len(before.context),
        answer.cached_tokens,
        move_ms,
        answer.first_ms,
        answer.equals(step.answer),
    )


async def _thaws(fleet: Fleet, session: str, step: _Step) -> list[tuple[float, float]]:
    """Freeze the conversation; thaw it on engines that have none of its KV, and go on."""
    window = f"fleet-{uuid4().hex[:8]}"
    await fleet.next_agent().tool("window_freeze", session_id=session, window_name=window, keep_session=True)
    times = []
    for number in range(1, _THAWS + 1):
        fleet.report(f"thaw {number} of {_THAWS}")
        await fleet.empty(*fleet.small_engines)
        started = time.perf_counter()
        thawed = await fleet.next_agent().tool("window_thaw", window_name=window)
        thaw_ms = (time.perf_counter() - started) * 1000
        going_on = fleet.session(thawed["session_id"])
        answer = await fleet.turn(going_on, step.prompt, ANSWER_TOKENS)
        if thawed["partial"] or answer.cached_tokens < restorable_tokens(thawed["token_count"], CHUNK):
            raise RuntimeError(f"a thaw did not restore its window: {thawed}")
        times.append((thaw_ms, answer.first_ms))
    await fleet.next_agent().tool("window_delete", window_name=window, force=True)
    return times


def section(result: MoveFigures) -> Section:
    return Section(
        f"moves: a conversation of {TOKENS:,} tokens, to and fro between two engines",
        (
            "move",
            "tokens",
            "restored",
            "blocks",
            "from",
            "canary",
            "turn cached",
            "move ms",
            "first token ms",
            "answer",
        ),
        [
            (
                number,
                turn.context_tokens,
                turn.receipt["tokens_restored"],
                f"{turn.receipt['blocks_found']}/{turn.receipt['blocks_total']}",
                ", ".join(f"{tier} {count}" for tier, count in turn.receipt["tokens_by_tier"].items()),
                turn.receipt["canary"]["result"],
                turn.cached_tokens,
                round(turn.move_ms, 1),
                round(turn.first_ms, 1),
                "as undisturbed" if turn.as_undisturbed else "DIFFERENT",
            )
            for number, turn in enumerate(result.turns, 1)
        ],
        note="by session_move at one gateway, the turn after it at the other; the target's vLLM and LMCache were emptied before. Undisturbed: the same conversation on "
        f"one engine, past the gateways. {_THAWS} thaws of it, from as empty engines: {_pair(result.thaws)}; cold first tokens: "
        f"{', '.join(f'{ms:,.0f}' for ms in result.cold_ms)} ms. Other engines idle",
    )


def _pair(thaws: Sequence[tuple[float, float]]) -> str:
    thaw, first = (median(times) for times in zip(*thaws, strict=True))
    return f"{thaw:.0f} ms and {first:.0f} ms to the first token after it (medians)"


def summary(result: MoveFigures) -> dict[str, Any]:
    """Ratios of medians. ``…_with_operation``: the move, or the thaw, and the first token of the turn after it together."""
    first = median([turn.first_ms for turn in result.turns])
    with_move = median([turn.move_ms + turn.first_ms for turn in result.turns])
    cold = median(result.cold_ms)
    whole = sum(restorable_tokens(turn.context_tokens, CHUNK) for turn in result.turns)
    return {
        "moves": len(result.turns),
        "moves_exact": sum(turn.is_exact for turn in result.turns),
        "moved_hit_share": ratio(sum(turn.hit_tokens for turn in result.turns), whole),
        "move_ms": median([turn.move_ms for turn in result.turns]),
        "ttft_ms_after_move": first,
        "ttft_ms_cold": cold,
        "ttft_ratio_to_thaw": ratio(first, median([first_ms for _, first_ms in result.thaws])),
        "ttft_ratio_to_thaw_with_operation": ratio(
            with_move, median([thaw_ms + first_ms for thaw_ms, first_ms in result.thaws])
        ),
        "ttft_ratio_to_cold": ratio(first, cold),
        "ttft_ratio_to_cold_with_operation": ratio(with_move, cold),
    }
