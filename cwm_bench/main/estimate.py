"""How long the parts of ``cwm bench main`` take, from a short measurement of the engine's speed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx2

from cwm_bench.main.parts import Part, Repetitions
from cwm_bench.main.pass_through import LOADS, Traffic, batch, clients
from cwm_bench.main.windows import SIZES, TIERS, cold_prefill

_SHORT: Final = 512
_LONG: Final = 4096
_CLIENTS: Final = 16
# Rough costs on two quiet cores, in seconds or as a share of a cold prefill.
_THAW_SHARE: Final = 0.04
_THAW_SECONDS: Final = 0.15
_FREEZE_SECONDS: Final = 0.8
_CANARY_SECONDS: Final = 0.5
_MEMORY_SECONDS: Final = 20.0
WITHOUT_ENGINE_SECONDS: Final = {Part.START: 10.0, Part.LISTS: 20.0}


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of two cold prefills, and of a batch of one client and of 16, by whether the engine had the prompts."""

    short: float
    long: float
    batches: dict[tuple[int, bool], float]

    def prefill(self, tokens: int) -> float:
        """A parabola through the origin and both measurements: attention grows with the square."""
        per_token = self.short / _SHORT
        growth = max(0.0, (self.long / _LONG - per_token) / (_LONG - _SHORT))
        return tokens * (per_token + growth * (tokens - _SHORT))

    def batch(self, load: Traffic) -> float:
        return self.batches[load.clients, load.known]


async def engine_speed(http: httpx2.AsyncClient, vllm_url: str, model: str, corpus: Sequence[int]) -> Speed:
    """Takes about as long as one cold prefill of 8,064 tokens."""

    async def seconds(work: Awaitable[object]) -> float:
        started = time.perf_counter()
        await work
        return time.perf_counter() - started

    prefill = partial(cold_prefill, http, vllm_url, model)
    await prefill(corpus[:_SHORT])  # the first request warms a process up
    short, long = await seconds(prefill(corpus[:_SHORT])), await seconds(prefill(corpus[:_LONG]))
    batches = {}
    async with clients() as many:
        for count in (1, _CLIENTS):
            load = Traffic(count, stream=True, known=True)
            for known in (False, True):  # the second batch has the prompts of the first
                batches[count, known] = await seconds(batch(many, vllm_url, model, load, 0))
    return Speed(short, long, batches)


def estimates(parts: Sequence[Part], repetitions: Repetitions, speed: Speed) -> dict[Part, float]:
    """Seconds by part."""
    seconds = {
        **WITHOUT_ENGINE_SECONDS,
        Part.FREEZE: _freeze(repetitions, speed),
        Part.THAW: _thaw(repetitions, speed),
        Part.PASS_THROUGH: sum(3 * repetitions.rounds_of(load.clients) * speed.batch(load) for load in LOADS),
        Part.FIRST_BYTE: sum(_first_byte(load, repetitions) * speed.batch(load) for load in LOADS),
        Part.MEMORY: _MEMORY_SECONDS,
    }
    return {part: seconds[part] for part in parts}


def _freeze(repetitions: Repetitions, speed: Speed) -> float:
    """Two prefills and five freezes of each context, and a freeze before."""
    contexts = zip(SIZES, repetitions.freezes, strict=True)
    return speed.prefill(SIZES[0]) + sum(
        rounds * (2 * speed.prefill(size) + 5 * _FREEZE_SECONDS) for size, rounds in contexts
    )


def _thaw(repetitions: Repetitions, speed: Speed) -> float:
    """Three timed requests from each tier, one of them with a canary; a thaw comes before each from the CPU tier."""
    seconds = 0.0
    for size, cold_prefills in zip(SIZES, repetitions.cold_prefills, strict=True):
        prefill = speed.prefill(size)
        thaw = _THAW_SECONDS + _THAW_SHARE * prefill
        timed = len(TIERS) * (3 * thaw + _CANARY_SECONDS) + 3 * thaw
        seconds += (1 + cold_prefills) * prefill + repetitions.thaws * timed
    return seconds


def _first_byte(load: Traffic, repetitions: Repetitions) -> int:
    """Batches, through the gateway and straight."""
    if not load.stream:
        return 0
    return 2 * repetitions.rounds_of(load.clients) + (2 * 2 * repetitions.series if load.clients > 1 else 0)
