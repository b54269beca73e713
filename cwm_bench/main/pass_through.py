"""The same requests through the gateway and straight to vLLM, in turns."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import httpx2

from cwm_bench.harness.figures import Section, median, ratio
from cwm_bench.main.parts import Repetitions

_PROMPT_WORDS = 16
_MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one request: until its first body byte, and until its end."""

    first: float
    whole: float


async def compare(
    direct: str, through: str, model: str, repetitions: Repetitions, progress: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """Latency and throughput, 1 and 16 clients, streaming and not; ratios are through / direct.

    vLLM is measured twice, as if one of the two were a gateway: their difference is the noise of the measurement.
    """
    section = Section(
        "pass-through: gateway against the same vLLM",
        (
            "case",
            "direct ms",
            "gateway ms",
            "ratio",
            "direct req/s",
            "gateway req/s",
            "ratio ",
            "first byte +ms",
            "vLLM against itself",
            " ",
            "+ms",
        ),
        note=f"medians of {repetitions.rounds_of(16) - 1} rounds, with one client of {repetitions.rounds_of(1) - 1}; {_MAX_TOKENS} tokens out; rounds alternate between direct, gateway and direct again; a session "
        "is recorded; no prompt is sent twice, except where the engine has it. vLLM against itself: latency, "
        "throughput and first byte of one direct arm against the other",
    )
    summary: dict[str, Any] = {}
    async with clients() as http:
        for load in LOADS:
            progress(load.name)
            rounds = repetitions.rounds_of(load.clients)
            figures = _figures(await _alternate(http, direct, through, model, load, rounds))
            section.rows.append((load.name, *figures.values()))
            summary[f"latency_ratio_{load.key}"] = figures["latency_ratio"]
            summary[f"throughput_ratio_{load.key}"] = figures["throughput_ratio"]
            summary[f"latency_ratio_{load.key}_noise"] = figures["latency_noise"]
            summary[f"throughput_ratio_{load.key}_noise"] = figures["throughput_noise"]
            if load.stream:
                summary[f"first_byte_added_ms_{load.key}"] = figures["first_added_ms"]
                summary[f"first_byte_added_ms_{load.key}_noise"] = figures["first_noise_ms"]
    return section, summary


def clients() -> httpx2.AsyncClient:
    """Connections for all clients. vLLM closes one after 5 idle seconds, and a request at that moment fails."""
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=2)
    return httpx2.AsyncClient(timeout=300, trust_env=False, limits=limits)


@dataclass(frozen=True, slots=True)
class Traffic:
    """``clients`` send a request each at once and wait for each other; with ``known``, always the same prompts.

    Prompts begin with ``nonce``: an engine may have been measured before.
    """

    clients: int
    stream: bool
    known: bool = False
    nonce: str = field(default_factory=lambda: uuid4().hex)

    @property
    def name(self) -> str:
        who = "1 client" if self.clients == 1 else f"{self.clients} clients"
        known = ", the engine has the prompt" if self.known else ""
        return f"{who}, {'streaming' if self.stream else 'whole'}{known}"

    @property
    def key(self) -> str:
        return f"{self.clients}_{'stream' if self.stream else 'whole'}{'_known' if self.known else ''}"

    def prompt(self, number: int, client: int) -> str:
        """The prompt of ``client`` in the ``number``-th batch."""
        prompt_number = client if self.known else number * self.clients + client
        return f"{self.nonce} {prompt_number} " + " ".join(
            f"word{(prompt_number * 7 + i) % 997}" for i in range(_PROMPT_WORDS)
        )


LOADS: Final = (
    Traffic(1, stream=False),
    Traffic(1, stream=True),
    Traffic(1, stream=True, known=True),
    Traffic(16, stream=False),
    Traffic(16, stream=True),
    Traffic(16, stream=True, known=True),
)


@dataclass(slots=True)
class _Rounds:
    timings: dict[str, list[Timing]]
    seconds: dict[str, float]


async def _alternate(
    http: httpx2.AsyncClient,
    direct: str,
    through: str,
    model: str,
    load: Traffic,
    count: int,
) -> _Rounds:
    sides = [("direct", direct), ("gateway", through), ("again", direct)]
    rounds = _Rounds({side: [] for side, _ in sides}, dict.fromkeys(dict(sides), 0.0))
    batches = itertools.count()
    for number in range(count):
        turn = number % len(sides)
        for side, url in (*sides[turn:], *sides[:turn]):
            batch_number = next(batches)
            started = time.perf_counter()
            timings = await batch(http, url, model, load, batch_number)
            if number:  # the first round warms connections up
                rounds.seconds[side] += time.perf_counter() - started
                rounds.timings[side].extend(timings)
    return rounds


async def batch(http: httpx2.AsyncClient, url: str, model: str, load: Traffic, number: int) -> list[Timing]:
    """One request of each client, all at once."""
    return await asyncio.gather(
        *(_one(http, url, model, load, number, client) for client in range(load.clients))
    )


async def _one(
    http: httpx2.AsyncClient, url: str, model: str, load: Traffic, number: int, client: int
) -> Timing:
    body = body_of(load, model, number, client)
    started = time.perf_counter()
    first = None
    async with http.stream(
        "POST", f"{url}/v1/completions", json=body, headers={"CWM-Session-Id": f"bench-{load.key}-{client}"}
    ) as response:
        async for _ in response.aiter_raw():
            first = first or time.perf_counter() - started
        if response.status_code != 200:
            raise RuntimeError(f"{url} answered {response.status_code}")
    whole = time.perf_counter() - started
    return Timing(first or whole, whole)


def body_of(load: Traffic, model: str, number: int, client: int) -> dict[str, Any]:
    """The request of ``client`` in the ``number``-th batch."""
    return {
        "model": model,
        "prompt": load.prompt(number, client),
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": load.stream,
    }


def _figures(rounds: _Rounds) -> dict[str, float]:
    whole = {side: median([t.whole * 1000 for t in rounds.timings[side]]) for side in rounds.timings}
    rate = {side: round(len(rounds.timings[side]) / rounds.seconds[side], 2) for side in rounds.timings}
    first = {side: median([t.first * 1000 for t in rounds.timings[side]]) for side in rounds.timings}
    return {
        "direct_ms": whole["direct"],
        "gateway_ms": whole["gateway"],
        "latency_ratio": ratio(whole["gateway"], whole["direct"]),
        "direct_rps": rate["direct"],
        "gateway_rps": rate["gateway"],
        "throughput_ratio": ratio(rate["gateway"], rate["direct"]),
        "first_added_ms": round(first["gateway"] - first["direct"], 3),
        "latency_noise": ratio(whole["again"], whole["direct"]),
        "throughput_noise": ratio(rate["again"], rate["direct"]),
        "first_noise_ms": round(first["again"] - first["direct"], 3),
    }
