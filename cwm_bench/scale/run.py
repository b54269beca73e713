"""``cwm bench scale``: a million windows and as many turns in both databases, and 200 tool calls per second for minutes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cwm import __version__
from cwm_bench.harness import agents, servers
from cwm_bench.harness.figures import Report, Section
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.postgres import postgres
from cwm_bench.scale import fill as scale_fill
from cwm_bench.scale import lists as scale_lists
from cwm_bench.scale import load as scale_load
from cwm_bench.scale.lists import QueryTimes
from cwm_bench.scale.load import CallFigures
from cwm_bench.scale.rows import WINDOWS_A_SESSION

_GOAL_MS: Final = 10
_GATEWAYS: Final = 2
_SQLITE: Final = "sqlite"
_POSTGRES: Final = "postgres"
# The rows are years old: upkeep would delete them during the queries.
_RETENTION: Final = {"retention": {"session_ttl_seconds": 0, "session_kept_seconds": 0, "patrol_windows": 0}}
_NOTE: Final = (
    f"goal: medians under {_GOAL_MS} ms; cpu: processor time of gateway and database, medians, which hold on a busy machine too; nine tenths of the windows are one tenant's, which sends the queries; offsets marked "
    "* begin half-way into a list and are not compared with the goal: cursors are; every 25th window has chunk references"
)
_LOAD_NOTE: Final = (
    f"timed from when a call was due; {_GATEWAYS} gateways in turns, as in compose.yaml, on Postgres and Valkey, without "
    "an engine: what needs one (freeze, thaw, session_create, session_generate) is left out, as are cache_stats and health_check"
)


@dataclass(frozen=True, slots=True)
class ScaleRun:
    windows: int = 1_000_000
    minutes: float = 10
    rounds: int = 30
    plans: bool = False
    calls_per_second: int = scale_load.CALLS_PER_SECOND


async def run(progress: Callable[[str], None], effort: ScaleRun, home: Path) -> Report:
    """Measure without an engine, with the Postgres of the ``embedded`` extra."""
    report = Report(
        "scale",
        {
            "cwm": __version__,
            "cores": os.cpu_count(),
            "load": [round(load, 2) for load in os.getloadavg()],
            "windows": effort.windows,
            "turns": effort.windows,
            "sessions": -(-effort.windows // WINDOWS_A_SESSION),
            "minutes": effort.minutes,
        },
    )
    async with AsyncExitStack() as stack:
        folder = await stack.enter_async_context(own_folder(home, progress))
        urls = {
            _SQLITE: f"sqlite:///{folder / 'cwm.db'}",
            _POSTGRES: await stack.enter_async_context(postgres(home)),
        }
        timed = {}
        for name, url in urls.items():
            progress(f"{effort.windows:,} windows into {name}")
            await scale_fill.fill(url, effort.windows, progress)
            progress(f"lists, {name}")
            timed[name] = await _lists(folder, url, effort, report)
        report.sections.insert(0, _table(timed))
        shallow = [each for by_name in timed.values() for each in by_name if not each.deep]
        worst = max(shallow, key=lambda each: each.p50)
        report.summary |= {
            "windows": effort.windows,
            "worst_median_ms": worst.p50,
            "worst_median_of": worst.name,
            "worst_median_cpu_ms": max(each.cpu for each in shallow),
            "worst_turn_median_ms": max(each.p50 for each in shallow if "turn" in each.name),
            "over_goal": sum(each.p50 >= _GOAL_MS for each in shallow),
        }
        progress(f"{effort.minutes:g} minutes of mixed calls")
        store = await stack.enter_async_context(servers.valkey(folder))
        gateways = [
            await stack.enter_async_context(
                servers.gateway(folder, _RETENTION, store, database_url=urls[_POSTGRES])
            )
            for _ in range(_GATEWAYS)
        ]
        steady = scale_load.Rate(effort.minutes * 60, effort.calls_per_second)
        _add_load(report, await scale_load.measure(gateways, effort.windows, steady, progress))
    return report


async def _lists(folder: Path, url: str, effort: ScaleRun, report: Report) -> list[QueryTimes]:
    count, rounds = effort.windows, effort.rounds
    async with scale_lists.opened(url) as parts:
        timed = await scale_lists.through_services(parts, count, rounds)
        if effort.plans:
            query_plans = Section(f"plans, {url.partition(':')[0]}", ("query", "plan"))
            query_plans.rows += await scale_lists.plans(parts, count)
            report.sections.append(query_plans)
        async with (
            servers.gateway(folder, _RETENTION, None, database_url=url) as gateway,
            agents.agent(gateway.url, agents.MODERN) as agent,
        ):
            pids = [gateway.pid, *await scale_lists.servers_of(parts)]
            return timed + await scale_lists.through_gateway(agent, count, rounds, pids)


def _table(timed: dict[str, list[QueryTimes]]) -> Section:
    columns = [f"{name} {what}" for name in timed for what in ("p50 ms", "p99 ms", "cpu ms")]
    section = Section("lists, searches, filters and statuses", ("query", *columns, "goal met"), note=_NOTE)
    for rows in zip(*timed.values(), strict=True):
        deep = rows[0].deep
        goal_met = all(row.p50 < _GOAL_MS for row in rows)
        figures = [figure for row in rows for figure in (row.p50, row.p99, row.cpu)]
        section.rows.append((f"{rows[0].name}{' *' if deep else ''}", *figures, "yes" if goal_met else "no"))
    return section


def _add_load(report: Report, figures: CallFigures) -> None:
    calls = Section("calls, by kind", ("call", "count", "p50 ms", "p99 ms", "worst ms"), note=_LOAD_NOTE)
    for kind, times in sorted(figures.milliseconds.items()):
        ordered = sorted(times)
        row = (kind, len(times), *(round(ordered[int(len(ordered) * at)], 3) for at in (0.5, 0.99)))
        calls.rows.append((*row, round(ordered[-1], 3)))
    report.sections.append(calls)
    if figures.faults:
        faults = Section("what failed", ("what", "times"))
        faults.rows += figures.faults.most_common(20)
        report.sections.append(faults)
    summary: dict[str, Any] = {
        "requests": figures.calls,
        "requests_per_second": round(figures.calls / figures.seconds, 1),
        "errors": figures.errors,
        "p50_ms": figures.p(50),
        "p99_ms": figures.p(99),
        "memory_start_mb": figures.megabytes(0),
        "memory_middle_mb": figures.megabytes(0.5),
        "memory_end_mb": figures.megabytes(1),
        "memory_slope_mb_per_minute": figures.slope,
    }
    report.summary |= summary
