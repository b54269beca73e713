"""A steady rate of tool calls against a gateway: what fails, how long calls take, and whether memory stays.

Calls begin when they are due, whether those before have ended or not, and are timed from when they were due: a gateway that
falls behind shows it.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from cwm.bench import rpc
from cwm.bench.goals import percentile
from cwm.bench.scale_rows import TENANT, name_of, session_id_of, tenant_of
from cwm.bench.servers import Server

_RATE: Final = 200
_SAMPLE_SECONDS: Final = 5.0
_MOST_AT_ONCE: Final = 256
_BIG_CHARS: Final = 120_000
_KEYS: Final = 500
_WORKSPACE: Final = "load"
# Of a hundred calls.
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


@dataclass(slots=True)
class Load:
    """``memory`` is resident MB, by seconds since the start."""

    seconds: float = 0.0
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(len(taken) for taken in self.milliseconds.values())

    @property
    def errors(self) -> int:
        return sum(self.faults.values())

    def p(self, percent: int) -> float:
        return percentile([ms for taken in self.milliseconds.values() for ms in taken], percent)

    def megabytes(self, share: float) -> float:
        """What the process had when so much of the time was over."""
        at = share * self.seconds
        return round(min(self.memory, key=lambda sample: abs(sample[0] - at))[1], 1)

    @property
    def slope(self) -> float:
        """MB a minute, over the second half: by then what is warmed up is."""
        half = [sample for sample in self.memory if sample[0] >= self.seconds / 2]
        if len(half) < 2:
            return 0.0
        line = statistics.linear_regression([at for at, _ in half], [mb for _, mb in half])
        return round(line.slope * 60, 2)


async def measure(gateway: Server, count: int, minutes: float, progress: Callable[[str], None]) -> Load:
    """``minutes`` of mixed calls at a registry of ``count`` windows."""
    limits = httpx2.Limits(
        max_connections=_MOST_AT_ONCE, max_keepalive_connections=_MOST_AT_ONCE, keepalive_expiry=30
    )
    async with httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:
        caller = _Caller(http, gateway.url, await rpc.opened(http, gateway.url, rpc.MODERN))
        calls = _calls(count, await _prepared(caller))
        load = Load()
        sampling = asyncio.create_task(_sample(gateway, load))
        try:
            await _drive(caller, calls, load, minutes * 60, progress)
        finally:
            sampling.cancel()
        return load


@dataclass(frozen=True, slots=True)
class _Caller:
    http: httpx2.AsyncClient
    url: str
    headers: dict[str, str]

    async def __call__(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the tool answers; RuntimeError for anything but success."""
        body = rpc.request(rpc.MODERN, "tools/call", {"name": tool, "arguments": arguments})
        answer = await self.http.post(self.url, json=body, headers={**self.headers, "mcp-name": tool})
        if answer.status_code != 200:
            raise RuntimeError(f"HTTP {answer.status_code}")
        result: dict[str, Any] = _message(answer).get("result", {})
        if not result or result.get("isError"):
            raise RuntimeError(_told(result))
        return result


def _message(answer: httpx2.Response) -> dict[str, Any]:
    """Of an answer in JSON, or the last event of a stream."""
    text = answer.text
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        text = text.rpartition("data: ")[2]
    message: dict[str, Any] = json.loads(text)
    return message


def _told(result: dict[str, Any]) -> str:
    texts = [str(item.get("text", "")) for item in result.get("content", [])]
    return (texts or ["no result"])[0][:160]


async def _prepared(caller: _Caller) -> str:
    """Fill what calls read; the cursor of a stored result."""
    for key in range(_KEYS):
        await caller("context_set", {"key": f"key/{key}", "value": {"number": key}})
    words = " ".join(f"word{number}" for number in range(_BIG_CHARS // 9))
    await caller("context_set", {"key": "big", "value": words})
    shown = await caller("context_get", {"key": "big"})
    return str(shown["_meta"]["dev.cwm/result"]["cursor"])


async def _drive(
    caller: _Caller,
    calls: Iterator[tuple[str, str, dict[str, Any]]],
    load: Load,
    seconds: float,
    progress: Callable[[str], None],
) -> None:
    under_way: set[asyncio.Task[None]] = set()
    began = time.perf_counter()
    told = 0
    for number in range(int(seconds * _RATE)):
        due = began + number / _RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(_call(caller, *next(calls), due, load))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        minute = int((due - began) // 60)
        if minute > told:
            told = minute
            progress(f"minute {minute}: {load.calls:,} calls, {load.errors} errors")
    await asyncio.gather(*under_way)
    load.seconds = time.perf_counter() - began


async def _call(
    caller: _Caller, kind: str, tool: str, arguments: dict[str, Any], due: float, load: Load
) -> None:
    try:
        await caller(tool, arguments)
    except (RuntimeError, httpx2.HTTPError, ValueError) as fault:
        load.faults[f"{kind}: {fault or type(fault).__name__}"] += 1
    load.milliseconds.setdefault(kind, []).append((time.perf_counter() - due) * 1000)


async def _sample(gateway: Server, load: Load) -> None:
    began = time.perf_counter()
    while True:
        load.memory.append((time.perf_counter() - began, gateway.rss_mb()))
        await asyncio.sleep(_SAMPLE_SECONDS)


def _calls(count: int, cursor: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kinds of calls, their tools and arguments, for ever; a clone is deleted by one of the next deletions."""
    chance = random.Random(1)  # noqa: S311 - nothing is guarded by it
    kinds, weights = zip(*_MIX, strict=True)
    clones: list[str] = []
    made = 0
    mine = [number for number in range(count) if tenant_of(number // 100) == TENANT]
    while True:
        kind: str = chance.choices(kinds, weights)[0]
        window = name_of(chance.choice(mine) // 25 * 25)
        match kind:
            case "window_list":
                order = {"sort_by": chance.choice(("name", "created_at", "token_count", "size"))}
                yield kind, kind, {**order, "offset": chance.choice((0, 0, 0, 20, 200))}
            case "window_list, filtered":
                tags = chance.choice(
                    (["coding"], ["review", "billing"], ["draft"], [f"topic-{chance.randrange(2000)}"])
                )
                yield kind, "window_list", {"tags": tags}
            case "window_list, search":
                search = chance.choice(("refactor", window, f"ticket {chance.randrange(count // 25)}"))
                yield kind, "window_list", {"search": search}
            case "window_status":
                yield kind, kind, {"window_name": window}
            case "session_list":
                yield kind, kind, chance.choice(({}, {"state_filter": "active"}))
            case "session_status":
                yield kind, "window_status", {"session_id": session_id_of(chance.choice(mine) // 100)}
            case "context_get":
                yield kind, kind, {"key": f"key/{chance.randrange(_KEYS)}"}
            case "context_set":
                yield kind, kind, {"key": f"key/{chance.randrange(_KEYS)}", "value": {"number": made}}
            case "context_list":
                yield kind, kind, {"limit": 20}
            case "result_read":
                yield kind, kind, {"cursor": cursor}
            case "window_delete" if len(clones) > 20:
                yield kind, kind, {"window_name": clones.pop(0)}
            case "get_metrics_data":
                yield kind, kind, {"format": "prometheus"}
            case _:
                made += 1
                clones.append(f"load-clone-{made}")
                yield "window_clone", "window_clone", {"source_window": window, "target_window": clones[-1]}
