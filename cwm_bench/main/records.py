"""Lists and lookups over 10,000 windows, on SQLite and on Postgres."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cwm.adapters.sql import schema
from cwm.adapters.sql.database import open_database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.prefix import digest
from cwm.domain.session import Session, SessionState
from cwm.domain.window import Chunk, Durability, Window, WindowQuery, WindowSort
from cwm.ports.registry import StoredChunks
from cwm_bench.harness.figures import Section, median

_WINDOWS = 10_000
_TENANT = "bench"
_IDENTITY = EngineIdentity("m", "/m", "f", 8192, "0", 256, 256, "blake3")
_QUERIES = {
    "newest 20": WindowQuery(),
    "by name, page 250": WindowQuery(sort_by=WindowSort.NAME, descending=False, offset=5000),
    "two tags": WindowQuery(tags=("even", "tens")),
    "search": WindowQuery(search="number 99"),
}


async def lists(databases: dict[str, str]) -> tuple[Section, dict[str, Any]]:
    """Median of 30 of each query; ``databases`` maps a name to a URL of an empty database."""
    section = Section(
        f"registry over {_WINDOWS:,} windows",
        ("query", *(f"{name} ms" for name in databases)),
        note="medians of 30",
    )
    figures: dict[str, list[float]] = {}
    for url in databases.values():
        await schema.upgrade(url)
        database = open_database(url)
        registry = SqlRegistry(database)
        await _fill(registry)
        for name, query in _QUERIES.items():
            figures.setdefault(f"window_list, {name}", []).append(await _timed(registry, query))
        figures.setdefault("window record", []).append(await _timed(registry, None))
        await database.dispose()
    section.rows.extend((name, *values) for name, values in figures.items())
    summary = {
        f"window_list_ms_{name}": max(values[i] for q, values in figures.items() if q != "window record")
        for i, name in enumerate(databases)
    }
    return section, summary


async def _timed(registry: SqlRegistry, query: WindowQuery | None) -> float:
    taken = []
    for _ in range(30):
        started = time.perf_counter()
        if query is None:
            await registry.window(_TENANT, "window-5000")
        else:
            await registry.windows(_TENANT, query)
        taken.append((time.perf_counter() - started) * 1000)
    return median(taken)


async def _fill(registry: SqlRegistry) -> None:
    now = datetime.now(UTC)
    ids = tuple(range(300))
    await registry.add_session(
        Session(_TENANT, "s", "bench", "m", SessionState.ACTIVE, "tenant:bench", 0, 0, now, now), ids
    )
    first = _window(0, now, ids)
    await registry.begin_freeze(first, ids, 0)
    await registry.finish_freeze(
        first, StoredChunks((Chunk("ab" * 32, 1000),), Tier.REDIS, {"redis": 1}), now
    )
    for number in range(1, _WINDOWS):
        await registry.add_clone(_window(number, now, ids), first.name)


def _window(number: int, now: datetime, ids: tuple[int, ...]) -> Window:
    at = now + timedelta(seconds=number)
    tags = tuple(tag for tag, every in (("even", 2), ("tens", 10), ("hundreds", 100)) if number % every == 0)
    return Window(
        tenant=_TENANT,
        name=f"window-{number}",
        session_id="s",
        owner="bench",
        snapshot_id=digest(ids),
        model="m",
        token_count=len(ids),
        block_count=1,
        total_size_bytes=1000,
        storage_tier=Tier.REDIS,
        durability=Durability.PENDING if number == 0 else Durability.DURABLE,
        salt_scope="tenant:bench",
        cache_salt="cwm1-bench",
        identity=_IDENTITY,
        created_at=at,
        updated_at=at,
        description=f"number {number} of many",
        tags=tags,
    )


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'records.db'}"
