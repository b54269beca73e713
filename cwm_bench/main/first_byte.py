"""Time that the gateway adds until the first byte of a stream, apart from vLLM's: a relay stands between the two."""

from __future__ import annotations

import asyncio
import re
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

import httpx2

from cwm_bench.harness.figures import Section, median
from cwm_bench.main.parts import Repetitions
from cwm_bench.main.pass_through import LOADS, Traffic, body_of, clients

_HEADER: Final = "x-bench-request"
_NUMBER: Final = re.compile(rb"\r\n" + _HEADER.encode() + rb": (\d+)\r\n", re.IGNORECASE)
_EVENT: Final = b"data:"
_PIECE_BYTES: Final = 65536


@dataclass(slots=True)
class Relay:
    """A relay to vLLM. By request number: when the last byte of the request came, and the first event of its answer."""

    url: str = ""
    request_times: dict[int, float] = field(default_factory=dict)
    answer_times: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FirstByteTimes:
    """Milliseconds from the client to the relay, back from the relay to the client, and in all until the first event."""

    into: float
    back: float
    first: float

    @property
    def between(self) -> float:
        """Milliseconds outside vLLM."""
        return self.into + self.back


@asynccontextmanager
async def relay(vllm_url: str) -> AsyncIterator[Relay]:
    """Run a relay on a free port until the block ends."""
    upstream, record = httpx2.URL(vllm_url), Relay()

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(upstream.host, upstream.port)
        number: int | None = None

        async def forward() -> None:
            nonlocal number
            while piece := await reader.read(_PIECE_BYTES):
                if match := _NUMBER.search(piece):
                    number = int(match[1])
                if number is not None and number not in record.answer_times:
                    record.request_times[number] = time.perf_counter()
                requests.write(piece)
            requests.close()

        forwarding = asyncio.create_task(forward())
        try:
            while piece := await answers.read(_PIECE_BYTES):
                if number is not None and number not in record.answer_times and _EVENT in piece:
                    record.answer_times[number] = time.perf_counter()
                writer.write(piece)
        finally:
            writer.close()
            forwarding.cancel()
            await asyncio.wait({forwarding})
            requests.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    record.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield record


@dataclass(frozen=True, slots=True)
class _Pace:
    """Clients that send ``requests`` each, the next after the answer, and then wait for each other; ``turns`` times.

    With one request they send at one instant, and the first turn is not counted. With more, answers of ``lengths``
    tokens part them, and the first request of each, before that, is not counted.
    """

    name: str
    key: str
    turns: int
    requests: int
    lengths: tuple[int, ...] = ()


async def measure(
    relay: Relay, gateway_url: str, model: str, repetitions: Repetitions, progress: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """Measure streams through a gateway whose vLLM is ``relay``, and straight to ``relay``, in turns."""
    section = Section(
        "time to the first byte: in the gateway",
        ("case", "to vLLM ms", "straight ms", "back ms", "straight ms ", "added ms", "first byte ms"),
        note="medians over requests; to vLLM: from the client's send until a relay before vLLM had the request; back: from the "
        "first event there until the client had it. Straight: the same without the gateway between client and relay. On "
        "the cores that the engine computes on; clients in their own time get answers of different lengths",
    )
    in_own_time = _Pace(", each in its own time", "_each", 2, repetitions.series, (8, 13, 21, 34, 55))
    summary: dict[str, Any] = {}
    numbers = count()
    async with clients() as http:
        for load in (load for load in LOADS if load.stream):
            at_once = _Pace(", at one instant", "", repetitions.rounds_of(load.clients), 1)
            for pace in (in_own_time, at_once) if load.clients > 1 else (at_once,):
                name = load.name + (pace.name if load.clients > 1 else "")
                progress(name)
                ask = partial(_turn_times, http, relay, model, load, pace, numbers)
                through, straight = await _in_turns(ask, pace, gateway_url, relay.url)
                added_ms = median([each.between for each in through]) - median(
                    [each.between for each in straight]
                )
                section.rows.append(
                    (
                        name,
                        median([each.into for each in through]),
                        median([each.into for each in straight]),
                        median([each.back for each in through]),
                        median([each.back for each in straight]),
                        round(added_ms, 3),
                        median([each.first for each in through]),
                    )
                )
                summary[f"first_byte_in_gateway_ms_{load.key}{pace.key}"] = round(added_ms, 3)
    return section, summary


async def _in_turns(
    ask: Callable[[str, int], Awaitable[list[FirstByteTimes]]], pace: _Pace, *urls: str
) -> list[list[FirstByteTimes]]:
    times: dict[str, list[FirstByteTimes]] = {url: [] for url in urls}
    for turn in range(pace.turns):
        for url in urls[:: 1 if turn % 2 else -1]:
            turn_times = await ask(url, turn)
            if turn or pace.requests > 1:  # the first one warms connections up
                times[url] += turn_times
    return list(times.values())


async def _turn_times(
    http: httpx2.AsyncClient,
    relay: Relay,
    model: str,
    load: Traffic,
    pace: _Pace,
    numbers: Iterator[int],
    url: str,
    turn: int,
) -> list[FirstByteTimes]:
    """The times of all clients' requests in one turn."""

    async def client(which: int) -> list[FirstByteTimes]:
        times = []
        for request in range(pace.requests):
            number = next(numbers)
            body = body_of(load, model, number, which)
            if pace.lengths:
                body["max_tokens"] = pace.lengths[(which + turn + request) % len(pace.lengths)]
            times.append(await _one(http, relay, url, body, f"first-{load.key}{pace.key}-{which}", number))
        return times[1:] if pace.requests > 1 else times

    return [each for times in await asyncio.gather(*map(client, range(load.clients))) for each in times]


async def _one(
    http: httpx2.AsyncClient, relay: Relay, url: str, body: dict[str, Any], session: str, number: int
) -> FirstByteTimes:
    headers = {"CWM-Session-Id": session, _HEADER: str(number)}
    start, first = time.perf_counter(), None
    async with http.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
        async for _ in response.aiter_raw():
            first = first or time.perf_counter()
        if response.status_code != 200:
            raise RuntimeError(f"{url} answered {response.status_code}")
    assert first is not None
    return FirstByteTimes(
        (relay.request_times[number] - start) * 1000,
        (first - relay.answer_times[number]) * 1000,
        (first - start) * 1000,
    )
