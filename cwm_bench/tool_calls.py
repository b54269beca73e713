"""``cwm bench gateway``: tool calls through CWM, compared with bare FastMCP and with the upstream itself."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2

from cwm import __version__
from cwm.domain.access import AccessScope
from cwm.settings import Database, Settings
from cwm.wiring.access import opened_keys
from cwm_bench.context import reload
from cwm_bench.harness import rpc
from cwm_bench.harness.figures import Report, Section, median
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.servers import answering, free_port, rss_bytes, running, valkey

_TEXT_BYTES: Final = 2048
_SESSIONS: Final = (1, 8, 32)
_CALLS: Final = 400
_IDLE_SESSIONS: Final = 5_000
_WARM_SESSIONS: Final = 500
_OPENING_AT_ONCE: Final = 16
_COLUMNS: Final = (
    "case",
    "bare ms",
    "own ms",
    "upstream ms",
    "bare calls/s",
    "own calls/s",
    "upstream calls/s",
    "own/bare",
    "upstream +ms",
)
_NOTE: Final = (
    "medians of {rounds} rounds of {calls} calls in turns; distinct arguments; one client process; own: a tool of CWM; upstream: "
    "the bare server through CWM; own/bare: throughput, the goal is 0.8 with the defaults and as a replica; upstream +ms: median latency over "
    "calling the upstream directly, the goal is 3 with one session; both are medians over the rounds"
)


@dataclass(frozen=True, slots=True)
class Target:
    """One side of a comparison: a server, the name of its echo tool, and the caller's credentials."""

    name: str
    url: str
    tool: str
    credentials: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Rounds:
    milliseconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


async def run(progress: Callable[[str], None], home: Path, *, rounds: int) -> Report:
    """Measure without an engine: the rest of the gateway runs and finds none.

    Raises StackError when Valkey is not installed.
    """
    report = Report("gateway", {"cwm": __version__, "cores": os.cpu_count(), "text_bytes": _TEXT_BYTES})
    async with own_folder(home, progress) as folder:
        log = folder / "servers.log"
        for title, started, suffix in (
            ("CWM with its defaults", _alone, ""),
            ("CWM as one of several replicas, with Valkey", _one_of_several, "_replica"),
            ("CWM with API keys, limits, Valkey and traces", _team, "_team"),
        ):
            async with server(log, "bare") as bare, started(log, bare.url) as (cwm, credentials):
                targets = (
                    Target("bare", bare.url, "echo"),
                    Target("own", cwm.url, "echo", credentials),
                    Target("upstream", cwm.url, "bare_echo", credentials),
                )
                section = Section(f"tools/call of a 2 KB echo: {title}, beside bare FastMCP", _COLUMNS)
                section.note = _NOTE.format(rounds=rounds, calls=_CALLS)
                summary = await _compare(section, targets, rounds, partial(_with_title, progress, title))
                report.sections.append(section)
                report.summary |= {f"{key}{suffix}": value for key, value in summary.items()}
        async with server(log, "bare") as bare:
            section, summary = await reload.measure(bare.url, folder, progress)
            report.sections.append(section)
            report.summary |= summary
        progress(f"{_IDLE_SESSIONS} idle sessions")
        # A busy process would reuse memory that it freed: this gateway is new.
        async with server(log, "bare") as bare, _alone(log, bare.url) as (cwm, _):
            report.summary["bytes_per_session"] = await _bytes_per_session(cwm)
    return report


def _with_title(progress: Callable[[str], None], title: str, what: str) -> None:
    progress(f"{title}: {what}")


@asynccontextmanager
async def _alone(log: Path, upstream_url: str) -> AsyncIterator[tuple[Server, dict[str, str]]]:
    """A gateway with its defaults and a new registry; callers need no credentials."""
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        async with server(log, "gateway", upstream_url, folder) as cwm:
            yield cwm, {}


@asynccontextmanager
async def _one_of_several(log: Path, upstream_url: str) -> AsyncIterator[tuple[Server, dict[str, str]]]:
    """The same with a shared store, as one of several replicas."""
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        async with (
            valkey(Path(folder)) as store_url,
            server(log, "replica", upstream_url, folder, store_url) as cwm,
        ):
            yield cwm, {}


@asynccontextmanager
async def _team(log: Path, upstream_url: str) -> AsyncIterator[tuple[Server, dict[str, str]]]:
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        async with (
            server(log, "collector") as collector,
            valkey(Path(folder)) as store_url,
            team(log, upstream_url, store_url, collector.origin) as (cwm, credentials),
        ):
            yield cwm, credentials


@asynccontextmanager
async def team(
    log: Path, upstream_url: str, store_url: str, otlp_url: str
) -> AsyncIterator[tuple[Server, dict[str, str]]]:
    """The same with API keys, limits, a shared store and traces; also the headers of a caller with a key."""
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        key = await _key(Path(folder) / "cwm.db")
        async with server(log, "team", upstream_url, folder, store_url, otlp_url) as cwm:
            yield cwm, {"authorization": f"Bearer {key}"}


async def _key(registry: Path) -> str:
    """Create a registry with one API key of all scopes; return the key."""
    settings = Settings(database=Database(db_path=registry))
    async with opened_keys(settings) as keys:
        everything = frozenset({AccessScope.ADMIN, AccessScope.TOOLS_CALL, AccessScope.WINDOWS_READ})
        _, text = await keys.create(settings.isolation.tenant, "bench", everything, None)
    return text


async def _compare(
    section: Section, targets: tuple[Target, ...], rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Add the rows to the section; return its summary."""
    limits = httpx2.Limits(max_connections=128, max_keepalive_connections=128, keepalive_expiry=2)
    async with httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:
        return await _rows(http, section, targets, rounds, progress)


async def _rows(
    http: httpx2.AsyncClient,
    section: Section,
    targets: tuple[Target, ...],
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    ratios, additions = [], []
    for era in (rpc.MODERN, rpc.LEGACY):
        for sessions in _SESSIONS:
            progress(f"{sessions} sessions, {era}")
            rounds_of = {target.name: _Rounds() for target in targets}
            for number in range(rounds + 1):
                for target in targets if number % 2 else reversed(targets):
                    one = await _round(http, target, era, sessions)
                    if number:  # the first round warms connections up
                        rounds_of[target.name].milliseconds.append(one[0])
                        rounds_of[target.name].rates.append(one[1])
            ms = {name: median(each.milliseconds) for name, each in rounds_of.items()}
            rates = {name: median(each.rates) for name, each in rounds_of.items()}
            throughput, added_ms = _throughput_ratio(rounds_of), _added_ms(rounds_of)
            ratios.append(throughput)
            if sessions == _SESSIONS[0]:
                additions.append(added_ms)
            section.rows.append(
                (
                    f"{era}, {sessions}",
                    *ms.values(),
                    *(round(r, 1) for r in rates.values()),
                    throughput,
                    added_ms,
                )
            )
    return {"throughput_ratio": min(ratios), "added_ms_upstream": max(additions)}


def _throughput_ratio(rounds_of: Mapping[str, _Rounds]) -> float:
    """Median of own throughput / bare throughput by round: both of a round met the same machine load."""
    pairs = zip(rounds_of["own"].rates, rounds_of["bare"].rates, strict=True)
    return round(statistics.median(own / bare for own, bare in pairs), 3)


def _added_ms(rounds_of: Mapping[str, _Rounds]) -> float:
    """Median by round of the milliseconds that a call through the gateway takes longer than a direct one."""
    pairs = zip(rounds_of["upstream"].milliseconds, rounds_of["bare"].milliseconds, strict=True)
    return round(statistics.median(through - bare for through, bare in pairs), 3)


async def _round(http: httpx2.AsyncClient, target: Target, era: str, sessions: int) -> tuple[float, float]:
    """Median milliseconds of a call, and calls per second."""
    headers = [await rpc.opened(http, target.url, era, target.credentials) for _ in range(sessions)]
    milliseconds: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(
        *(_calls(http, target, era, one, _CALLS // sessions, milliseconds) for one in headers)
    )
    seconds = time.perf_counter() - started
    return median(milliseconds), len(milliseconds) / seconds


async def _calls(
    http: httpx2.AsyncClient,
    target: Target,
    era: str,
    headers: Mapping[str, str],
    count: int,
    milliseconds: list[float],
) -> None:
    for number in range(count):
        text = f"{number} {time.perf_counter_ns()} ".ljust(_TEXT_BYTES, "x")
        body = rpc.request(era, "tools/call", {"name": target.tool, "arguments": {"text": text}})
        began = time.perf_counter()
        answer = await http.post(target.url, json=body, headers={**headers, "mcp-name": target.tool})
        milliseconds.append((time.perf_counter() - began) * 1000)
        if text not in answer.text:
            raise RuntimeError(f"{target.name} answered {answer.status_code}: {answer.text[:300]}")


async def _bytes_per_session(cwm: Server) -> int:
    """Resident memory per idle session that made one call: the growth of RSS over all of them."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        await _speak_once(http, cwm.url, _WARM_SESSIONS)
        before = rss_bytes(cwm.pid)
        await _speak_once(http, cwm.url, _IDLE_SESSIONS)
        return round((rss_bytes(cwm.pid) - before) / _IDLE_SESSIONS)


async def _speak_once(http: httpx2.AsyncClient, url: str, sessions: int) -> None:
    turns = iter(range(sessions))

    async def open_some() -> None:
        for _ in turns:
            headers = await rpc.opened(http, url, rpc.LEGACY)
            body = rpc.request(rpc.LEGACY, "tools/call", {"name": "session_list", "arguments": {"limit": 1}})
            (await http.post(url, json=body, headers=headers)).raise_for_status()

    await asyncio.gather(*(open_some() for _ in range(_OPENING_AT_ONCE)))


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; ``url`` is its MCP endpoint, if it has one."""

    origin: str
    pid: int

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"


@asynccontextmanager
async def server(log: Path, which: str, *arguments: str) -> AsyncIterator[Server]:
    port = free_port()
    program = ["-m", "cwm_bench.harness.echo", which, str(port), *arguments]
    async with running(program, {}, log) as process:
        started = Server(f"http://127.0.0.1:{port}", process.pid)
        await answering(started.url, process, log)
        yield started
