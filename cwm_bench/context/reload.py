"""Changes of ``cwm.yaml`` while a gateway serves: when each is in force, and whether calls in flight are answered."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from cwm_bench.harness import rpc, servers
from cwm_bench.harness.figures import Section, median

_BOUND_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01
_CALLERS: Final = 8
_RELOADS: Final = 11
_TEXT_BYTES: Final = 2048


async def milliseconds_until(
    folder: Path, document: Mapping[str, Any], holds: Callable[[], Awaitable[bool]]
) -> float:
    """From the write of ``document`` to ``cwm.yaml`` in ``folder`` until the first request whose answer follows it.

    ``holds`` sends a request and returns whether the answer follows the document. It is called every 10 ms, also while
    earlier answers are pending. Raises TimeoutError after a minute without such an answer.
    """
    await asyncio.to_thread(servers.configure, folder, document)
    write_time = time.perf_counter()
    matches = list[float]()

    async def ask() -> None:
        start = time.perf_counter()
        if await holds():
            matches.append(start)

    # Sequential requests would add the wait for the one before.
    async with asyncio.timeout(_BOUND_SECONDS), asyncio.TaskGroup() as questions:
        while not matches:
            questions.create_task(ask())
            await asyncio.sleep(_POLL_SECONDS)
    return (min(matches) - write_time) * 1000


@dataclass(slots=True)
class _CallCounts:
    """Calls by concurrent clients to an upstream that each reload reconfigures."""

    under_way: int = 0
    answered: int = 0
    dropped: int = 0
    over: bool = False


async def measure(
    upstream_url: str, root: Path, progress: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    """Add and remove an upstream while another one is called all the time; the summary covers all reloads."""
    section = Section(
        f"changes of cwm.yaml, while {_CALLERS} clients call an upstream that each change reconfigures",
        ("case", "reloads", "median ms", "slowest ms", "under way", "calls", "dropped"),
        note="from the write to the first call whose answer follows it, the goal is 100 ms; under way: calls at the write, "
        "median; dropped: calls without the right answer, the goal is 0",
    )
    milliseconds: list[float] = []
    dropped = 0
    with tempfile.TemporaryDirectory(dir=root) as name:
        folder, first = Path(name), _document(upstream_url, 0, comes=False)
        async with servers.gateway(folder, first, None) as cwm, _http() as http:
            for case, comes in (("an upstream comes", True), ("an upstream goes", False)):
                progress(case)
                ms, under_way, load = await _case(http, cwm.url, upstream_url, folder, comes=comes)
                figures = (median(ms), round(max(ms), 1), median(under_way), load.answered, load.dropped)
                section.rows.append((case, len(ms), *figures))
                milliseconds += ms
                dropped += load.dropped
    summary = {
        "reload_ms": median(milliseconds),
        "reload_worst_ms": round(max(milliseconds), 1),
        "reload_dropped_calls": dropped,
    }
    return section, summary


async def _case(
    http: httpx2.AsyncClient, url: str, upstream_url: str, folder: Path, *, comes: bool
) -> tuple[list[float], list[float], _CallCounts]:
    """Milliseconds of each reload, calls in flight at each, and counts of the calls' outcomes."""

    async def there() -> bool:
        return await _echoed(http, url, rpc.modern(), rpc.MODERN, "other_echo")

    async def as_wanted() -> bool:
        return await there() is comes

    async def as_before() -> bool:
        return await there() is not comes

    ms, under_way = list[float](), list[float]()
    async with _called(http, url) as load:
        for number in range(_RELOADS):
            await milliseconds_until(folder, _document(upstream_url, 2 * number, comes=not comes), as_before)
            under_way.append(load.under_way)
            document = _document(upstream_url, 2 * number + 1, comes=comes)
            ms.append(await milliseconds_until(folder, document, as_wanted))
    return ms, under_way, load


@asynccontextmanager
async def _called(http: httpx2.AsyncClient, url: str) -> AsyncIterator[_CallCounts]:
    """Clients of both eras call until the block ends; then the calls in flight are awaited."""
    load = _CallCounts()
    eras = [(rpc.MODERN, rpc.LEGACY)[number % 2] for number in range(_CALLERS)]
    sessions = [(era, await rpc.opened(http, url, era)) for era in eras]
    for era, headers in sessions:
        # A session's first call takes longer, which is no effect of a changed file.
        await _echoed(http, url, headers, era, "bare_echo")
    async with asyncio.TaskGroup() as calling:
        for era, headers in sessions:
            calling.create_task(_call_on(http, url, headers, era, load))
        try:
            yield load
        finally:
            load.over = True


async def _call_on(
    http: httpx2.AsyncClient, url: str, headers: Mapping[str, str], era: str, load: _CallCounts
) -> None:
    while not load.over:
        load.under_way += 1
        try:
            echoed = await _echoed(http, url, headers, era, "bare_echo")
        except httpx2.HTTPError:
            echoed = False
        load.under_way -= 1
        load.answered += echoed
        load.dropped += not echoed


async def _echoed(
    http: httpx2.AsyncClient, url: str, headers: Mapping[str, str], era: str, tool: str
) -> bool:
    text = f"{time.perf_counter_ns()} ".ljust(_TEXT_BYTES, "x")
    body = rpc.request(era, "tools/call", {"name": tool, "arguments": {"text": text}})
    return text in (await http.post(url, json=body, headers={**headers, "mcp-name": tool})).text


def _document(upstream_url: str, number: int, *, comes: bool) -> dict[str, Any]:
    """``number`` makes it differ from the one before."""
    upstreams: dict[str, Any] = {"bare": {"url": upstream_url, "call_seconds": 300 + number % 7}}
    if comes:
        upstreams["other"] = {"url": upstream_url}
    return {"upstreams": upstreams}


def _http() -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=128, max_keepalive_connections=128, keepalive_expiry=2)
    return httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits)
