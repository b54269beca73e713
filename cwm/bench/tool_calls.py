"""``cwm bench gateway``: tool calls through CWM, beside bare FastMCP and beside the upstream itself."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from cwm import __version__
from cwm.bench import rpc
from cwm.bench.figures import Report, Section, median

_START_SECONDS: Final = 30.0
_TEXT_BYTES: Final = 2048
_SESSIONS: Final = (1, 8, 32)
_CALLS: Final = 400
_IDLE_SESSIONS: Final = 5_000
_WARM_SESSIONS: Final = 500
_OPENING_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Target:
    """One side of a comparison: a server, and the name of its echo."""

    name: str
    url: str
    tool: str


@dataclass(slots=True)
class _Rounds:
    milliseconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


async def run(progress: Callable[[str], None], *, rounds: int) -> Report:
    """Measure. Needs no engine: the gateway's other parts run, and find none."""
    report = Report("gateway", {"cwm": __version__, "cores": os.cpu_count(), "text_bytes": _TEXT_BYTES})
    with tempfile.TemporaryDirectory(prefix="cwm-bench-") as folder:
        log = Path(folder) / "servers.log"
        async with _server(log, "bare") as bare, _server(log, "gateway", bare.url, folder) as cwm:
            limits = httpx2.Limits(max_connections=128, max_keepalive_connections=128, keepalive_expiry=2)
            async with httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits) as http:
                targets = (
                    Target("bare", bare.url, "echo"),
                    Target("own", cwm.url, "echo"),
                    Target("upstream", cwm.url, "bare_echo"),
                )
                section, summary = await _compare(http, targets, rounds, progress)
                report.sections.append(section)
                report.summary |= summary
        progress(f"{_IDLE_SESSIONS} idle sessions")
        # Memory that a busy process freed would be taken before any new: this one has not been busy.
        async with _server(log, "bare") as bare, _server(log, "gateway", bare.url, folder) as cwm:
            report.summary["bytes_per_session"] = await _bytes_per_session(cwm)
    return report


async def _compare(
    http: httpx2.AsyncClient, targets: tuple[Target, ...], rounds: int, progress: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    section = Section(
        "tools/call of a 2 KB echo: bare FastMCP, CWM's own tool, the bare server through CWM",
        (
            "case",
            "bare ms",
            "own ms",
            "upstream ms",
            "bare calls/s",
            "own calls/s",
            "upstream calls/s",
            "own/bare",
            "upstream +ms",
        ),
        note=f"medians of {rounds} rounds of {_CALLS} calls in turns; distinct arguments; one client process; "
        "own/bare: throughput, the goal is 0.8; upstream +ms: median latency over calling the upstream directly; "
        "both are medians of what each round gave",
    )
    ratios, added = [], []
    for era in (rpc.MODERN, rpc.LEGACY):
        for sessions in _SESSIONS:
            progress(f"{sessions} sessions, {era}")
            taken = {target.name: _Rounds() for target in targets}
            for number in range(rounds + 1):
                for target in targets if number % 2 else reversed(targets):
                    one = await _round(http, target, era, sessions)
                    if number:  # the first round warms connections up
                        taken[target.name].milliseconds.append(one[0])
                        taken[target.name].rates.append(one[1])
            ms = {name: median(each.milliseconds) for name, each in taken.items()}
            rates = {name: median(each.rates) for name, each in taken.items()}
            kept, more = _kept(taken), _more(taken)
            ratios.append(kept)
            if sessions == _SESSIONS[0]:
                added.append(more)
            section.rows.append(
                (f"{era}, {sessions}", *ms.values(), *(round(r, 1) for r in rates.values()), kept, more)
            )
    return section, {"throughput_ratio": min(ratios), "added_ms_upstream": max(added)}


def _kept(taken: Mapping[str, _Rounds]) -> float:
    """Median of the rounds' own throughput over bare: both of one round met the same machine."""
    pairs = zip(taken["own"].rates, taken["bare"].rates, strict=True)
    return round(statistics.median(own / bare for own, bare in pairs), 3)


def _more(taken: Mapping[str, _Rounds]) -> float:
    """Median of the rounds' milliseconds that the way through the gateway takes longer."""
    pairs = zip(taken["upstream"].milliseconds, taken["bare"].milliseconds, strict=True)
    return round(statistics.median(through - bare for through, bare in pairs), 3)


async def _round(http: httpx2.AsyncClient, target: Target, era: str, sessions: int) -> tuple[float, float]:
    """Median milliseconds of a call, and calls a second."""
    headers = [await rpc.opened(http, target.url, era) for _ in range(sessions)]
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


async def _bytes_per_session(cwm: _Server) -> int:
    """Resident memory that sessions take which spoke once and are idle: RSS after less before."""
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http:
        await _speak_once(http, cwm.url, _WARM_SESSIONS)
        before = cwm.rss_bytes()
        await _speak_once(http, cwm.url, _IDLE_SESSIONS)
        return round((cwm.rss_bytes() - before) / _IDLE_SESSIONS)


async def _speak_once(http: httpx2.AsyncClient, url: str, sessions: int) -> None:
    left = iter(range(sessions))

    async def open_some() -> None:
        for _ in left:
            headers = await rpc.opened(http, url, rpc.LEGACY)
            body = rpc.request(rpc.LEGACY, "tools/call", {"name": "session_list", "arguments": {"limit": 1}})
            (await http.post(url, json=body, headers=headers)).raise_for_status()

    await asyncio.gather(*(open_some() for _ in range(_OPENING_AT_ONCE)))


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    pid: int

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def _server(log: Path, which: str, *arguments: str) -> AsyncIterator[_Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CWM_", "FASTMCP_"))}
    environ["FASTMCP_ENABLE_RICH_LOGGING"] = "false"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cwm.bench.echo",
            which,
            str(port),
            *arguments,
            env=environ,
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        await _answering(url, process, log)
        yield _Server(url, process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _answering(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(_START_SECONDS):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"a server ended at once:\n{_tail(log)}")
            try:
                await http.get(url)
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
            else:
                return


def _tail(log: Path) -> str:
    return log.read_text()[-2000:]
