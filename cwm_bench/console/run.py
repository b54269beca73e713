"""``cwm bench console``: every page over 100,000 windows, 10,000 conversations and one of 500 turns, on SQLite and Postgres."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cwm import __version__
from cwm_bench.console import conversation as long_conversation
from cwm_bench.console.pages import TREE, PageFigures, addresses, measured
from cwm_bench.harness import servers
from cwm_bench.harness.figures import Report, Section
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.postgres import postgres
from cwm_bench.scale import fill as scale_fill
from cwm_bench.scale import lists as scale_lists

_GOAL_MS: Final = 100
_GOAL_BYTES: Final = 100_000
_WINDOWS_A_SESSION: Final = 10
# The rows are years old: upkeep would delete them during the requests.
_RETENTION: Final = {"retention": {"session_ttl_seconds": 0, "session_kept_seconds": 0, "patrol_windows": 0}}
_NOTE: Final = (
    f"goals: medians of at most {_GOAL_MS} ms, at most {_GOAL_BYTES // 1000} kB; from a request to the last byte of the page, on one "
    "connection; cpu: processor time of gateway and database; a gateway of its own, without an engine; messages in the clear"
)


@dataclass(frozen=True, slots=True)
class ConsoleRun:
    windows: int = 100_000
    turns: int = 500
    rounds: int = 30


async def run(progress: Callable[[str], None], effort: ConsoleRun, home: Path) -> Report:
    """Measure without an engine, with the Postgres of the ``embedded`` extra."""
    report = Report(
        "console",
        {
            "cwm": __version__,
            "cores": os.cpu_count(),
            "load": [round(load, 2) for load in os.getloadavg()],
            "windows": effort.windows,
            "conversations": effort.windows // _WINDOWS_A_SESSION + 1,
            "turns_of_the_long_one": effort.turns,
        },
    )
    figures: dict[str, list[PageFigures]] = {}
    async with AsyncExitStack() as stack:
        folder = await stack.enter_async_context(own_folder(home, progress))
        urls = {
            "sqlite": f"sqlite:///{folder / 'cwm.db'}",
            "postgres": await stack.enter_async_context(postgres(home)),
        }
        for name, url in urls.items():
            progress(f"{effort.windows:,} windows into {name}")
            figures[name] = await _pages(progress, folder, url, effort)
    report.sections.append(_table(figures))
    every = [each for of_one in figures.values() for each in of_one]
    worst, largest = max(every, key=lambda each: each.times.p50), max(every, key=lambda each: each.size)
    trees = [each.times.p50 for each in every if each.times.name.startswith(TREE)]
    report.summary |= {
        "worst_page_ms": worst.times.p50,
        "worst_page": worst.times.name,
        "tree_500_ms": max(trees),
        "largest_transfer_bytes": largest.size,
        "largest_transfer": largest.times.name,
        "over_goal": sum(each.times.p50 > _GOAL_MS or each.size > _GOAL_BYTES for each in every),
    }
    return report


async def _pages(
    progress: Callable[[str], None], folder: Path, url: str, effort: ConsoleRun
) -> list[PageFigures]:
    await scale_fill.fill(url, effort.windows, progress, _WINDOWS_A_SESSION)
    async with scale_lists.opened(url) as parts:
        conversation = await long_conversation.record(parts.base.registry, effort.turns)
        progress("pages")
        async with servers.gateway(folder, _RETENTION, None, database_url=url) as gateway:
            pids = [gateway.pid, *await scale_lists.servers_of(parts)]
            at = gateway.url.removesuffix("/mcp")
            return await measured(at, pids, addresses(effort.windows, conversation), effort.rounds)


def _table(figures: dict[str, list[PageFigures]]) -> Section:
    columns = [f"{name} {what}" for name in figures for what in ("p50 ms", "p99 ms", "cpu ms")]
    section = Section("pages", ("page", *columns, "kB", "goals met"), note=_NOTE)
    for rows in zip(*figures.values(), strict=True):
        times = [value for row in rows for value in (row.times.p50, row.times.p99, row.times.cpu)]
        size = max(row.size for row in rows)
        is_met = size <= _GOAL_BYTES and all(row.times.p50 <= _GOAL_MS for row in rows)
        section.rows.append((rows[0].times.name, *times, round(size / 1000, 1), "yes" if is_met else "no"))
    return section
