"""A steady rate of tool calls to the gateways of one team: errors, durations, and growth of memory.

Calls start when they are due, also while earlier ones run, and are timed from that moment: a gateway that falls behind
shows it. Gateways take turns, as behind a plain proxy.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import httpcore2

from cwm.adapters.http.sockets import AsyncioBackend
from cwm_bench.harness import rpc
from cwm_bench.harness.goals import percentile
from cwm_bench.harness.servers import Server
from cwm_bench.scale.rows import ASKER, TENANT, WINDOWS_A_SESSION, name_of, owner_of, session_id_of, tenant_of

CALLS_PER_SECOND: Final = 200
_SAMPLE_SECONDS: Final = 5.0
# More would not make gateways on two cores faster, and httpcore walks all its connections for every call.
_MOST_AT_ONCE: Final = 32
_BIG_CHARS: Final = 120_000
_TIMEOUTS: Final = {"timeout": dict.fromkeys(("pool", "connect", "read", "write"), 60.0)}
_BROKEN: Final = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
_KEYS: Final = 500
_FEWEST_CLONES: Final = 20
# Calls of each kind in a hundred.
_MIX: Final = (
    ("window_list", 25),
    ("window_list, filtered", 15),
    ("window_list, search", 8),
    ("window_status", 14),
    ("session_list", 8),
    ("session_status", 6),
    ("context_get", 10),
    ("context_set", 4),
    ("context_list", 4),
    ("result_read", 3),
    ("window_clone", 1),
    ("window_delete", 1),
    ("get_metrics_data", 1),
)


@dataclass(frozen=True, slots=True)
class Rate:
    seconds: float
    calls_per_second: int


@dataclass(slots=True)
class CallFigures:
    """Durations and errors of the calls; ``memory`` is resident MB of all gateways, by seconds since the start."""

    seconds: float = 0.0
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(len(times) for times in self.milliseconds.values())

    @property
    def errors(self) -> int:
        return sum(self.faults.values())

    def p(self, percent: int) -> float:
        return percentile([ms for times in self.milliseconds.values() for ms in times], percent)

    def megabytes(self, share: float) -> float:
        """Resident MB at this ``share`` of the time."""
        at = share * self.seconds
        return round(min(self.memory, key=lambda sample: abs(sample[0] - at))[1], 1)

    @property
    def slope(self) -> float:
        """MB per minute over the second half, when the gateways have warmed up."""
        half = [sample for sample in self.memory if sample[0] >= self.seconds / 2]
        if len(half) < 2:
            return 0.0
        line = statistics.linear_regression([at for at, _ in half], [mb for _, mb in half])
        return round(line.slope * 60, 2)


async def measure(
    gateways: Sequence[Server], count: int, rate: Rate, progress: Callable[[str], None]
) -> CallFigures:
    """Make mixed calls to ``gateways``, which share a registry of ``count`` windows and everything else."""
    async with httpcore2.AsyncConnectionPool(
        max_connections=_MOST_AT_ONCE * len(gateways), keepalive_expiry=30, network_backend=AsyncioBackend()
    ) as http:
        urls = itertools.cycle(gateway.url for gateway in gateways)
        caller = _Caller(http, urls, asyncio.Semaphore(_MOST_AT_ONCE))
        calls = _calls(count, await _prepared(caller))
        figures = CallFigures()
        sampling = asyncio.create_task(_sample(gateways, figures))
        try:
            await _drive(caller, calls, figures, rate, progress)
        finally:
            sampling.cancel()
        return figures


@dataclass(frozen=True, slots=True)
class _Caller:
    """A minimal client, as it shares the machine with the gateways.

    ``turns`` bounds the calls at once; a wait for it counts as time of the gateway.
    """

    http: httpcore2.AsyncConnectionPool
    urls: Iterator[str]
    turns: asyncio.Semaphore

    async def __call__(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The tool's answer. Raises RuntimeError for anything but success."""
        body = rpc.request(rpc.MODERN, "tools/call", {"name": tool, "arguments": arguments})
        content = json.dumps(body).encode()
        url = next(self.urls)
        headers = {**rpc.modern(), "mcp-name": tool, **_framing(url, content)}
        async with self.turns:
            answer = await self.http.request(
                "POST", url, headers=list(headers.items()), content=content, extensions=_TIMEOUTS
            )
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"HTTP {answer.status}")
        result: dict[str, Any] = _message(answer).get("result", {})
        if not result or result.get("isError"):
            raise RuntimeError(_error_text(result))
        return result


def _framing(url: str, content: bytes) -> dict[str, str]:
    host = url.partition("://")[2].partition("/")[0]
    return {"host": host, "content-type": "application/json", "content-length": str(len(content))}


def _message(answer: httpcore2.Response) -> dict[str, Any]:
    """The message of a JSON answer, or of the last event of a stream."""
    content = answer.content
    if dict(answer.headers).get(b"content-type", b"").startswith(b"text/event-stream"):
        content = content.rpartition(b"data: ")[2]
    message: dict[str, Any] = json.loads(content)
    return message


def _error_text(result: dict[str, Any]) -> str:
    texts = [str(item.get("text", "")) for item in result.get("content", [])]
    return (texts or ["no result"])[0][:160]


async def _prepared(caller: _Caller) -> str:
    """Store the values that calls read; return the handle of a stored result."""
    for key in range(_KEYS):
        await caller("context_set", {"key": f"key/{key}", "value": {"number": key}})
    words = " ".join(f"word{number}" for number in range(_BIG_CHARS // 9))
    await caller("context_set", {"key": "big", "value": words})
    result = await caller("context_get", {"key": "big"})
    return str(result["_meta"]["dev.cwm/result"]["handle"])


async def _drive(
    caller: _Caller,
    calls: Iterator[tuple[str, str, dict[str, Any]]],
    figures: CallFigures,
    rate: Rate,
    progress: Callable[[str], None],
) -> None:
    under_way: set[asyncio.Task[None]] = set()
    began = time.perf_counter()
    last_minute = 0
    for number in range(int(rate.seconds * rate.calls_per_second)):
        due = began + number / rate.calls_per_second
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(_call(caller, *next(calls), due, figures))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        minute = int((due - began) // 60)
        if minute > last_minute:
            last_minute = minute
            progress(f"minute {minute}: {figures.calls:,} calls, {figures.errors} errors")
    await asyncio.gather(*under_way)
    figures.seconds = time.perf_counter() - began


async def _call(
    caller: _Caller, kind: str, tool: str, arguments: dict[str, Any], due: float, figures: CallFigures
) -> None:
    try:
        await caller(tool, arguments)
    except (RuntimeError, ValueError, *_BROKEN) as fault:
        figures.faults[f"{kind}: {str(fault) or type(fault).__name__}"] += 1
    figures.milliseconds.setdefault(kind, []).append((time.perf_counter() - due) * 1000)


async def _sample(gateways: Sequence[Server], figures: CallFigures) -> None:
    began = time.perf_counter()
    while True:
        figures.memory.append((time.perf_counter() - began, sum(each.rss_mb() for each in gateways)))
        await asyncio.sleep(_SAMPLE_SECONDS)


def _calls(count: int, handle: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Endless calls: kind, tool and arguments."""
    arguments = _Arguments(count, handle)
    kinds, weights = zip(*_MIX, strict=True)
    while True:
        kind: str = arguments.chance.choices(kinds, weights)[0]
        yield kind, *arguments.call(kind)


class _Arguments:
    """Random arguments, and the clones so far: a deletion takes the oldest clone, or makes one if there are too few."""

    def __init__(self, count: int, handle: str) -> None:
        self.chance = random.Random(1)  # noqa: S311 - nothing is guarded by it
        self._count, self._handle = count, handle
        sessions = range(count // WINDOWS_A_SESSION)
        self._sessions = [
            number for number in sessions if (tenant_of(number), owner_of(number)) == (TENANT, ASKER)
        ]
        self._clones: list[str] = []
        self._clone_count = 0

    def call(self, kind: str) -> tuple[str, dict[str, Any]]:
        match kind.partition(", ")[0]:
            case "window_list":
                return "window_list", self._listed(kind)
            case "session_status":
                return "window_status", {"session_id": session_id_of(self.chance.choice(self._sessions))}
            case "window_delete" if len(self._clones) > _FEWEST_CLONES:
                return kind, {"window_name": self._clones.pop(0)}
            case "window_clone" | "window_delete":
                self._clone_count += 1
                self._clones.append(f"load-clone-{self._clone_count}")
                return "window_clone", {"source_window": self._window(), "target_window": self._clones[-1]}
            case _:
                return kind, self._others(kind)

    def _listed(self, kind: str) -> dict[str, Any]:
        if kind.endswith("search"):
            ticket = f"ticket {self.chance.randrange(self._count // 25)}"
            return {"search": self.chance.choice(("refactor", self._window(), ticket))}
        if kind.endswith("filtered"):
            rare = [f"topic-{self.chance.randrange(2000)}"]
            return {"tags": self.chance.choice((["coding"], ["review", "billing"], ["draft"], rare))}
        order = self.chance.choice(("name", "created_at", "token_count", "size"))
        return {"sort_by": order, "offset": self.chance.choice((0, 0, 0, 20, 200))}

    def _others(self, kind: str) -> dict[str, Any]:
        key = f"key/{self.chance.randrange(_KEYS)}"
        arguments: dict[str, dict[str, Any]] = {
            "window_status": {"window_name": self._window()},
            "session_list": self.chance.choice(({}, {"state_filter": "active"})),
            "context_get": {"key": key},
            "context_set": {"key": key, "value": {"number": self._clone_count}},
            "context_list": {"limit": 20},
            "result_read": {"handle": self._handle, "page": 2},
            "get_metrics_data": {"format": "prometheus"},
        }
        return arguments[kind]

    def _window(self) -> str:
        """The name of a window that was frozen, not cloned."""
        return name_of(self.chance.choice(self._sessions) * WINDOWS_A_SESSION + 25 * self.chance.randrange(4))
