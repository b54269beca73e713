"""What the gateway itself adds until the first byte of a stream: a relay between it and vLLM tells the two apart."""

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
from cwm_bench.main.pass_through import LOADS, Load, body_of, clients

_HEADER: Final = "x-bench-request"
_NUMBER: Final = re.compile(rb"\r\n" + _HEADER.encode() + rb": (\d+)\r\n", re.IGNORECASE)
_EVENT: Final = b"data:"
_PIECE_BYTES: Final = 65536


@dataclass(slots=True)
class Relay:
    """Passes bytes on to vLLM. By request number: when the last of it came, and when the first event of its answer did."""

    url: str = ""
    asked: dict[int, float] = field(default_factory=dict)
    answered: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """Milliseconds from the client to the relay, back from the relay to the client, and all until the first event."""

    into: float
    back: float
    first: float

    @property
    def between(self) -> float:
        """All that vLLM did not take."""
        return self.into + self.back


@asynccontextmanager
async def relay(vllm_url: str) -> AsyncIterator[Relay]:
    """One on a free port until the block ends."""
    upstream, seen = httpx2.URL(vllm_url), Relay()

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(upstream.host, upstream.port)
        number: int | None = None

        async def ask() -> None:
            nonlocal number
            while piece := await reader.read(_PIECE_BYTES):
                if found := _NUMBER.search(piece):
                    number = int(found[1])
                if number is not None and number not in seen.answered:
                    seen.asked[number] = time.perf_counter()
                requests.write(piece)
            requests.close()

        asking = asyncio.create_task(ask())
        try:
            while piece := await answers.read(_PIECE_BYTES):
                if number is not None and number not in seen.answered and _EVENT in piece:
                    seen.answered[number] = time.perf_counter()
                writer.write(piece)
        finally:
            writer.close()
            asking.cancel()
            await asyncio.wait({asking})
            requests.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield seen


@dataclass(frozen=True, slots=True)
class _Crowd:
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
    seen: Relay, gateway_url: str, model: str, repetitions: Repetitions, progress: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """Streams through a gateway whose vLLM is ``seen``, and straight to it in turns."""
    section = Section(
        "time to the first byte: in the gateway",
        ("case", "to vLLM ms", "straight ms", "back ms", "straight ms ", "added ms", "first byte ms"),
        note="medians over requests;  to vLLM: from the client's send until a relay before vLLM had the request; back: from the "
        "first event there until the client had it. Straight: the same without the gateway between client and relay. On "
        "the cores that the engine computes on; clients in their own time get answers of different lengths",
    )
    in_own_time = _Crowd(", each in its own time", "_each", 2, repetitions.series, (8, 13, 21, 34, 55))
    summary: dict[str, Any] = {}
    numbers = count()
    async with clients() as http:
        for load in (load for load in LOADS if load.stream):
            at_once = _Crowd(", at one instant", "", repetitions.rounds_of(load.clients), 1)
            for crowd in (in_own_time, at_once) if load.clients > 1 else (at_once,):
                name = load.name + (crowd.name if load.clients > 1 else "")
                progress(name)
                ask = partial(_asking, http, seen, model, load, crowd, numbers)
                through, straight = await _in_turns(ask, crowd, gateway_url, seen.url)
                added = median([each.between for each in through]) - median(
                    [each.between for each in straight]
                )
                section.rows.append(
                    (
                        name,
                        median([each.into for each in through]),
                        median([each.into for each in straight]),
                        median([each.back for each in through]),
                        median([each.back for each in straight]),
                        round(added, 3),
                        median([each.first for each in through]),
                    )
                )
                summary[f"first_byte_in_gateway_ms_{load.key}{crowd.key}"] = round(added, 3)
    return section, summary


async def _in_turns(
    ask: Callable[[str, int], Awaitable[list[Taken]]], crowd: _Crowd, *urls: str
) -> list[list[Taken]]:
    taken: dict[str, list[Taken]] = {url: [] for url in urls}
    for turn in range(crowd.turns):
        for url in urls[:: 1 if turn % 2 else -1]:
            times = await ask(url, turn)
            if turn or crowd.requests > 1:  # the first one warms connections up
                taken[url] += times
    return list(taken.values())


async def _asking(
    http: httpx2.AsyncClient,
    seen: Relay,
    model: str,
    load: Load,
    crowd: _Crowd,
    numbers: Iterator[int],
    url: str,
    turn: int,
) -> list[Taken]:
    """What the requests of all clients took in one turn."""

    async def client(which: int) -> list[Taken]:
        times = []
        for request in range(crowd.requests):
            number = next(numbers)
            body = body_of(load, model, number, which)
            if crowd.lengths:
                body["max_tokens"] = crowd.lengths[(which + turn + request) % len(crowd.lengths)]
            times.append(await _one(http, seen, url, body, f"first-{load.key}{crowd.key}-{which}", number))
        return times[1:] if crowd.requests > 1 else times

    return [each for times in await asyncio.gather(*map(client, range(load.clients))) for each in times]


async def _one(
    http: httpx2.AsyncClient, seen: Relay, url: str, body: dict[str, Any], session: str, number: int
) -> Taken:
    headers = {"CWM-Session-Id": session, _HEADER: str(number)}
    sent, first = time.perf_counter(), None
    async with http.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
        async for _ in response.aiter_raw():
            first = first or time.perf_counter()
        if response.status_code != 200:
            raise RuntimeError(f"{url} answered {response.status_code}")
    assert first is not None
    return Taken(
        (seen.asked[number] - sent) * 1000, (first - seen.answered[number]) * 1000, (first - sent) * 1000
    )
