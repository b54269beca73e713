"""First bytes and throughput of the same requests at vLLM itself and through what stands in front of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import httpx2

from cwm_bench.agents.clients import BY_PROTOCOL, AgentClient
from cwm_bench.agents.conversation import Conversation, sized
from cwm_bench.agents.sides import AGAIN, CWM, LITELLM, VLLM, Side, ask, asking, in_turns
from cwm_bench.harness.figures import Section, median, ratio

SIZES: Final = (2_000, 6_000)
_ANSWER_TOKENS: Final = 4
_ROUNDS: Final = 15
_CLIENTS: Final = 8
_REQUESTS: Final = 2
_SHORT_ANSWER_TOKENS: Final = 16
_LOADS: Final = 6
_NOT_INSTALLED: Final = "not installed"


async def first_bytes(
    sides: Sequence[Side], model: str, report: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """What each side adds until the first byte, on each protocol, in conversations of each size."""
    times: dict[tuple[str, int], dict[str, list[float]]] = {}
    async with asking() as http:
        for tokens in SIZES:
            conversation = await sized(http, sides[0].url, model, tokens)
            for protocol, client in BY_PROTOCOL.items():
                report(f"first byte: {protocol}, {tokens:,} tokens")
                times[protocol, tokens] = await _first_bytes(http, model, sides, client, conversation)
    return first_byte_figures(times)


async def _first_bytes(
    http: httpx2.AsyncClient,
    model: str,
    sides: Sequence[Side],
    client: AgentClient,
    conversation: Conversation,
) -> dict[str, list[float]]:
    """Ms by side; the first two rounds warm up: one computes the conversation, the next finds it in the cache."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    sessions = {side.name: str(uuid4()) for side in sides}
    for number in range(-2, _ROUNDS):
        for side in in_turns(sides, number):
            exchange = await ask(
                http, side, client, _new(conversation), model, sessions[side.name], _ANSWER_TOKENS
            )
            if number >= 0:
                times[side.name].append(exchange.first_ms)
    return times


def first_byte_figures(
    times: Mapping[tuple[str, int], Mapping[str, Sequence[float]]],
) -> tuple[Section, dict[str, Any]]:
    """From ms by protocol and size, then by side. The summary has what is added at the larger size."""
    section = Section(
        "first byte: the same requests at vLLM and through what stands in front of it",
        (
            "protocol",
            "tokens",
            "vLLM ms",
            "CWM ms",
            "CWM +ms",
            "LiteLLM ms",
            "LiteLLM +ms",
            "vLLM again +ms",
        ),
        note=f"medians of {_ROUNDS} streamed requests to each in turns, one client; system text, ten tools and a conversation that the engine has in its cache; "
        "only the end of the last question is new. CWM records each. vLLM sends Responses their first event before it computes. "
        "vLLM again: the noise",
    )
    additions: dict[str, dict[tuple[str, int], float]] = {CWM: {}, LITELLM: {}}
    for (protocol, tokens), by_side in times.items():
        medians = {side: median(values) for side, values in by_side.items()}
        adds = {side: round(ms - medians[VLLM], 3) for side, ms in medians.items()}
        for side in additions.keys() & adds.keys():
            additions[side][protocol, tokens] = adds[side]
        section.rows.append(
            (
                protocol,
                tokens,
                medians[VLLM],
                medians[CWM],
                adds[CWM],
                medians.get(LITELLM, _NOT_INSTALLED),
                adds.get(LITELLM, _NOT_INSTALLED),
                adds[AGAIN],
            )
        )
    return section, {
        "first_byte_added_ms": _at_the_larger_size(additions[CWM]),
        "first_byte_added_ms_worst": max(additions[CWM].values()),
        "first_byte_added_ms_litellm": _at_the_larger_size(additions[LITELLM]) or _NOT_INSTALLED,
    }


def _at_the_larger_size(additions: Mapping[tuple[str, int], float]) -> dict[str, float]:
    return {protocol: ms for (protocol, tokens), ms in additions.items() if tokens == max(SIZES)}


async def throughput(
    sides: Sequence[Side], model: str, report: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """How long many clients take at once with short answers, on each protocol."""
    seconds = {}
    async with asking() as http:
        conversation = await sized(http, sides[0].url, model, min(SIZES))
        for protocol, client in BY_PROTOCOL.items():
            report(f"throughput: {protocol}, {_CLIENTS} clients")
            seconds[protocol] = await _loads(http, model, sides, client, conversation)
    return throughput_figures(seconds)


async def _loads(
    http: httpx2.AsyncClient,
    model: str,
    sides: Sequence[Side],
    client: AgentClient,
    conversation: Conversation,
) -> dict[str, list[float]]:
    """Seconds of each load by side; the first one warms up."""

    async def requests(side: Side, session: str) -> None:
        for _ in range(_REQUESTS):
            await ask(http, side, client, _new(conversation), model, session, _SHORT_ANSWER_TOKENS)

    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    sessions = {side.name: [str(uuid4()) for _ in range(_CLIENTS)] for side in sides}
    for number in range(-1, _LOADS):
        for side in in_turns(sides, number):
            started = time.perf_counter()
            await asyncio.gather(*(requests(side, session) for session in sessions[side.name]))
            if number >= 0:
                seconds[side.name].append(time.perf_counter() - started)
    return seconds


def throughput_figures(
    seconds: Mapping[str, Mapping[str, Sequence[float]]],
) -> tuple[Section, dict[str, Any]]:
    """From seconds by protocol, then by side; ratios of requests per second, of a side and of vLLM."""
    section = Section(
        f"throughput: {_CLIENTS} clients at once",
        (
            "protocol",
            "vLLM req/s",
            "CWM req/s",
            "CWM / vLLM",
            "LiteLLM req/s",
            "LiteLLM / vLLM",
            "vLLM again / vLLM",
        ),
        note=f"medians of {_LOADS} loads to each in turns; {_REQUESTS} streamed requests a client, of {min(SIZES):,} tokens that the engine has in its cache, "
        f"with answers of at most {_SHORT_ANSWER_TOKENS} tokens. On the cores that the engine computes on. vLLM again: the noise",
    )
    ratios: dict[str, dict[str, float]] = {CWM: {}, LITELLM: {}}
    for protocol, by_side in seconds.items():
        rates = {side: round(_CLIENTS * _REQUESTS / median(values), 2) for side, values in by_side.items()}
        of_vllm = {side: ratio(rate, rates[VLLM]) for side, rate in rates.items()}
        for side in ratios.keys() & of_vllm.keys():
            ratios[side][protocol] = of_vllm[side]
        section.rows.append(
            (
                protocol,
                rates[VLLM],
                rates[CWM],
                of_vllm[CWM],
                rates.get(LITELLM, _NOT_INSTALLED),
                of_vllm.get(LITELLM, _NOT_INSTALLED),
                of_vllm[AGAIN],
            )
        )
    return section, {
        "throughput_ratio": ratios[CWM],
        "throughput_ratio_litellm": ratios[LITELLM] or _NOT_INSTALLED,
    }


def _new(conversation: Conversation) -> Conversation:
    """With a last question that nobody asked before."""
    return conversation.goes_on("It reads its settings and starts.", f"What else does it do? ({uuid4().hex})")
