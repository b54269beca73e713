"""The same requests through the gateway and straight to vLLM, taken in turns."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httpx2

from cwm.bench.figures import Section, median, ratio

_PROMPT_WORDS = 40
_MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one request: until its first body byte, and whole."""

    first: float
    whole: float


async def compare(direct: str, through: str, model: str, requests: int) -> tuple[Section, dict[str, Any]]:
    """Latency and throughput, 1 and 16 clients, streaming and not; ratios are through / direct."""
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
        ),
        note=f"medians; {_MAX_TOKENS} tokens out; rounds alternate between direct and gateway; a session is recorded",
    )
    summary: dict[str, Any] = {}
    # vLLM closes a connection after 5 idle seconds, and a request that meets the close fails.
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=2)
    async with httpx2.AsyncClient(timeout=300, trust_env=False, limits=limits) as http:
        for clients in (1, 16):
            for stream in (False, True):
                plain = await _alternate(http, direct, through, model, clients, requests, stream=stream)
                figures = _figures(plain)
                name = f"{clients} client{'s' if clients > 1 else ''}, {'streaming' if stream else 'whole'}"
                section.rows.append((name, *figures.values()))
                key = f"{clients}_{'stream' if stream else 'whole'}"
                summary[f"latency_ratio_{key}"] = figures["latency_ratio"]
                summary[f"throughput_ratio_{key}"] = figures["throughput_ratio"]
                if stream:
                    summary[f"first_byte_added_ms_{key}"] = figures["first_added_ms"]
    return section, summary


@dataclass(slots=True)
class _Rounds:
    timings: dict[str, list[Timing]]
    seconds: dict[str, float]


async def _alternate(
    http: httpx2.AsyncClient,
    direct: str,
    through: str,
    model: str,
    clients: int,
    requests: int,
    *,
    stream: bool,
) -> _Rounds:
    rounds = _Rounds({"direct": [], "gateway": []}, {"direct": 0.0, "gateway": 0.0})
    serial = 0
    for number in range(max(9, requests // max(clients, 2))):
        order = [("direct", direct), ("gateway", through)]
        for side, url in order if number % 2 else reversed(order):
            serial += clients
            started = time.perf_counter()
            batch = await asyncio.gather(
                *(
                    _one(http, url, model, f"bench-{clients}-{stream}-{i}", serial + i, stream=stream)
                    for i in range(clients)
                )
            )
            if number:  # the first round warms connections up
                rounds.seconds[side] += time.perf_counter() - started
                rounds.timings[side].extend(batch)
    return rounds


async def _one(
    http: httpx2.AsyncClient, url: str, model: str, session: str, serial: int, *, stream: bool
) -> Timing:
    words = " ".join(f"word{(serial * 7 + i) % 997}" for i in range(_PROMPT_WORDS))
    body = {
        "model": model,
        "prompt": words,
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    started = time.perf_counter()
    first = None
    async with http.stream(
        "POST", f"{url}/v1/completions", json=body, headers={"CWM-Session-Id": session}
    ) as response:
        async for _ in response.aiter_raw():
            first = first or time.perf_counter() - started
        if response.status_code != 200:
            raise RuntimeError(f"{url} answered {response.status_code}")
    whole = time.perf_counter() - started
    return Timing(first or whole, whole)


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
    }
