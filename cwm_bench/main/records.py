"""Lists and lookups over 10,000 windows, on SQLite and on Postgres."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.window import WindowQuery, WindowSort
from cwm_bench.harness.figures import Section, median
from cwm_bench.scale.fill import fill
from cwm_bench.scale.rows import TENANT, name_of

_WINDOWS: Final = 10_000
_ROUNDS: Final = 30
_QUERIES: Final = {
    "window_list, newest 20": WindowQuery(),
    "window_list, by name, page 250": WindowQuery(sort_by=WindowSort.NAME, descending=False, offset=5000),
    "window_list, two tags": WindowQuery(tags=("coding", "review")),
    "window_list, search": WindowQuery(search="ticket 99"),
}
_RECORD: Final = "window record"


async def lists(databases: dict[str, str], windows: int = _WINDOWS) -> tuple[Section, dict[str, Any]]:
    """``databases`` maps a name to a URL of an empty database; the summary has the slowest query of each."""
    times = {name: await _milliseconds(url, windows) for name, url in databases.items()}
    section = Section(
        f"registry over {windows:,} windows",
        ("query", *(f"{name} ms" for name in databases)),
        [(query, *(ms[query] for ms in times.values())) for query in (*_QUERIES, _RECORD)],
        note=f"medians of {_ROUNDS}; nine tenths of the windows are one tenant's, whose lists these are",
    )
    return section, {
        f"window_list_ms_{name}": max(ms[query] for query in _QUERIES) for name, ms in times.items()
    }


async def _milliseconds(url: str, windows: int) -> dict[str, float]:
    await fill(url, windows, _ignore)
    database = open_database(url)
    try:
        registry = SqlRegistry(database)
        return {query: await _timed(registry, query, windows) for query in (*_QUERIES, _RECORD)}
    finally:
        await database.dispose()


async def _timed(registry: SqlRegistry, query: str, windows: int) -> float:
    milliseconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        if query == _RECORD:
            await registry.window(TENANT, name_of(windows // 2 + 100))
        else:
            await registry.windows(TENANT, _QUERIES[query])
        milliseconds.append((time.perf_counter() - started) * 1000)
    return median(milliseconds)


def _ignore(_line: str) -> None:
    """Filling takes seconds."""


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'records.db'}"
