"""``cwm bench context``: shared context and result budgets, each figure beside its thresholds.

The seeds are the designs that required them: ADR-010 for shared context, R001 to R005 for result budgets.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cwm import __version__
from cwm.adapters.tokens.bpe import BpeTokenCounter
from cwm_bench.context import pages as context_pages
from cwm_bench.context import previews, tokens
from cwm_bench.context import results as context_results
from cwm_bench.context import sharing as context_sharing
from cwm_bench.context import store as context_store
from cwm_bench.context.store import SQLITE
from cwm_bench.harness import goals, servers
from cwm_bench.harness.figures import Report
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.goals import Bound, Figure, at_least, percentile, under

_REDIS: Final = "redis"
_MODULE: Final = "cwm_bench.context.store"
_GOAL_MS: Final = {SQLITE: under(1), _REDIS: under(3)}
_NOTES: Final = {
    "sharing": "agents of both eras take turns at a gateway with an upstream in front of files; a few files are read often, most "
    "rarely; the first read of each counts; then each agent stores the files it read, and half as many values of its own",
    "store": "through the service, values of 2 KB, one at a time; sqlite: nothing beside this process; redis: a Valkey on loopback; "
    "processor time is of all threads, and holds on a busy machine too",
    "memory": "growth of a process's resident memory while it stores different values of three times the budget",
    "recovery": "100 MB of different values; recovery: a new process reads all of them; with its start: from "
    "when that process began; checkpoint: a snapshot, and its restore after every key was overwritten",
    "previews": "of results of 300 KB, counting included",
    "delivery": "compared with the upstream's own tool, called directly for as much text as a page has",
    "pages": "pages: of a stored result of 300 KB, by cursor, through the service",
}


@dataclass(frozen=True, slots=True)
class ContextRun:
    """How much one run measures: ``megabytes`` for recovery, ``filled_megabytes`` (three times the budget) for memory."""

    operations: int = 2_000
    megabytes: int = 100
    filled_megabytes: int = 300
    rounds: int = 7
    cursors: int = 20_000
    estimated_chars: Sequence[int] = (300_000, 600_000, 2_000_000)
    estimates: int = 4
    load: context_sharing.Workload = field(default_factory=context_sharing.Workload)
    sizes: context_results.Sizes = field(default_factory=context_results.Sizes)


async def run(progress: Callable[[str], None], effort: ContextRun, home: Path) -> Report:
    """Measure without an engine, with the Valkey of the ``embedded`` extra."""
    report = Report(
        "context",
        {"cwm": __version__, "cores": os.cpu_count(), "load": [round(load, 2) for load in os.getloadavg()]},
    )
    async with own_folder(home, progress) as root, servers.valkey(_sub(root)) as valkey:
        stores = {SQLITE: SQLITE, _REDIS: valkey}
        progress("agents that share what they read")
        _add(
            report,
            "shared answers and one copy",
            "sharing",
            await context_sharing.measure(_sub(root), effort.load),
        )
        progress("sets and gets")
        _add(report, "operations", "store", await _operations(root, stores, effort))
        progress("memory")
        _add(report, "memory", "memory", await _memory(root, effort))
        progress("recovery")
        _add(report, "recovery", "recovery", await _recovery(root, stores, effort))
        detail, figures, reloads = await context_results.measure(_sub(root), effort.sizes, progress)
        report.sections.append(detail)
        _add(report, "tokens delivered, and all the rest recovered", "delivery", figures)
        _add(report, "changes of a policy", "", reloads)
        progress("cursors and pages")
        _add(report, "cursors and pages", "pages", await _pages(root, stores, effort))
        progress("previews")
        await _previews(report, effort)
        progress("token counts")
        await _estimates(report, effort)
    return report


async def _operations(root: Path, stores: dict[str, str], effort: ContextRun) -> list[Figure]:
    figures = []
    for name, store in stores.items():
        for what, times in (await context_store.operations(_sub(root), store, effort.operations)).items():
            key, label = f"{what}_{name}", f"context_{what}, {name}"
            cpu = percentile(times.cpu, 99)
            figures += [
                *(
                    Figure(
                        f"{key}_p{percent}_ms",
                        f"{label}, p{percent}",
                        percentile(times.milliseconds, percent),
                        "ms",
                        under(10),
                        _GOAL_MS[name],
                    )
                    for percent in (50, 99)
                ),
                Figure(f"{key}_p99_cpu_ms", f"{label}, p99 of processor time", cpu, "ms"),
            ]
    return figures


async def _memory(root: Path, effort: ContextRun) -> list[Figure]:
    usage = await _store_figures(root, "fill", SQLITE, effort.filled_megabytes)
    budget = usage["budget_mb"]
    limit = under(usage["limit_mb"] + 0.1)
    return [
        Figure("memory_mb", "resident memory taken", usage["rss_mb"], "MB", under(100), under(budget)),
        Figure(
            "memory_peak_mb",
            "the most while it was filled",
            usage["rss_peak_mb"],
            "MB",
            under(100),
            under(budget),
        ),
        Figure(
            "memory_counted_mb", "counted against the budget", usage["counted_mb"], "MB", under(100), limit
        ),
    ]


async def _recovery(root: Path, stores: dict[str, str], effort: ContextRun) -> list[Figure]:
    figures: list[Figure] = []
    reading, with_start, wrong_count = [], [], 0
    for name, store in stores.items():
        folder = _sub(root)
        arguments = (str(folder), store, str(effort.megabytes))
        checkpoint = await servers.json_output(_MODULE, "checkpoint", *arguments)
        recovery = await servers.json_output(_MODULE, "recover", *arguments)
        reading.append(recovery["read_s"])
        with_start.append(recovery["recovery_s"])
        wrong_count += recovery["wrong"]
        seconds = round(checkpoint["snapshot_s"] + checkpoint["restore_s"], 4)
        figures += [
            Figure(
                f"checkpoint_{name}_s", f"checkpoint and restore, {name}", seconds, "s", under(5), under(2)
            ),
            Figure(f"recovery_{name}_s", f"recovery, {name}", recovery["read_s"], "s", under(5), under(2)),
            Figure(
                f"recovery_with_start_{name}_s",
                f"the same with the start of the process, {name}",
                recovery["recovery_s"],
                "s",
                under(5),
            ),
            Figure(f"recovery_cpu_{name}_s", f"of it, processor time, {name}", recovery["cpu_s"], "s"),
        ]
    return [
        Figure("recovery_s", "recovery, the slower store", max(reading), "s", under(5), under(2)),
        Figure(
            "recovery_with_start_s", "the same with the start of the process", max(with_start), "s", under(5)
        ),
        Figure(
            "recovered_wrong",
            "values that came back wrong or not at all",
            wrong_count,
            "values",
            None,
            under(1),
        ),
        *figures,
    ]


async def _pages(root: Path, stores: dict[str, str], effort: ContextRun) -> list[Figure]:
    figures = context_pages.cursors(effort.cursors)
    for name, store in stores.items():
        milliseconds = await context_pages.pages(_sub(root), store, effort.rounds)
        figures += [
            Figure(
                f"page_{name}_p{percent}_ms",
                f"a page, {name}, p{percent}",
                percentile(milliseconds, percent),
                "ms",
                under(50),
                under(5),
            )
            for percent in (50, 99)
        ]
    return figures


async def _previews(report: Report, effort: ContextRun) -> None:
    section, measured = previews.measure(BpeTokenCounter(), effort.rounds)
    report.sections.append(section)
    figures = [
        Figure(key, key.removesuffix("_ms").replace("_", ", "), value, "ms", under(20), under(20))
        for key, value in measured.items()
    ]
    _add(report, "previews", "previews", figures)


async def _estimates(report: Report, effort: ContextRun) -> None:
    section, measured = await tokens.measure(effort.estimated_chars, effort.estimates, effort.rounds)
    report.sections.append(section)
    bounds: dict[str, tuple[str, str, Bound | None, Bound | None]] = {
        "estimate_error_p95": ("off by, p95", "share", None, under(0.05)),
        "estimate_within_20_percent": ("texts off by 20 % at most", "share", at_least(0.9), at_least(0.9)),
        "estimate_worst_under": ("under the truth, worst", "share", None, under(0.05)),
        "estimate_ms_100kb": ("100 KB, the slowest kind of text", "ms", under(20), under(20)),
        "estimate_memory_mb": ("memory of the vocabulary in use", "MB", None, under(60)),
    }
    figures = [
        Figure(key, name, measured[key], unit, seed, goal) for key, (name, unit, seed, goal) in bounds.items()
    ]
    _add(report, "token counts", "", figures)


async def _store_figures(root: Path, what: str, store: str, megabytes: int) -> dict[str, Any]:
    return await servers.json_output(_MODULE, what, str(_sub(root)), store, str(megabytes))


def _sub(root: Path) -> Path:
    """A new folder in ``root``."""
    return Path(tempfile.mkdtemp(dir=root))


def _add(report: Report, title: str, note: str, figures: list[Figure]) -> None:
    report.sections.append(goals.section(title, figures, _NOTES.get(note, "")))
    report.summary |= goals.summary(figures)
