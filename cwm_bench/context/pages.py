"""Cursors and pages in process: how long signing, checking and cutting take."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cwm.domain.cursor import Cursors, Position, snapshot_of
from cwm.domain.results import HANDLE_BYTES, Part, PartKind, StoredPart, StoredResult, handle_of
from cwm.domain.tool_policy import ToolPolicy
from cwm_bench.context import store as context_store
from cwm_bench.context.store import WHO
from cwm_bench.harness import responses
from cwm_bench.harness.goals import Figure, about, percentile, under

_KB: Final = 300
_HANDLE: Final = handle_of(bytes(range(HANDLE_BYTES)))


def cursors(rounds: int) -> list[Figure]:
    make_us, read_us, size = list[float](), list[float](), 0
    signer, now = Cursors([b"a benchmark's"]), datetime.now(UTC)
    expiry = now + timedelta(minutes=10)
    part = StoredPart(PartKind.TEXT, "text/plain", "0" * 64, _KB * 1000)
    snapshot = snapshot_of(StoredResult(WHO.tenant, _HANDLE, WHO.subject, "t", (part,), now, expiry), part)
    for number in range(rounds):
        began = time.perf_counter()
        cursor = signer.make(Position(_HANDLE, 0, number), WHO, snapshot, expiry)
        between = time.perf_counter()
        position = signer.read(cursor, WHO, datetime.now(UTC)).require(snapshot)
        read_us.append((time.perf_counter() - between) * 1e6)
        make_us.append((between - began) * 1e6)
        size = max(size, len(cursor))
        if position.offset != number:
            raise RuntimeError("a cursor says something else than it was made to say")
    return [
        Figure("cursor_bytes", "a cursor", size, "bytes", about(100), under(200)),
        Figure(
            "cursor_make_us", "a cursor made, median", percentile(make_us, 50), "µs", under(1000), under(50)
        ),
        Figure(
            "cursor_read_us",
            "a cursor checked, median",
            percentile(read_us, 50),
            "µs",
            under(1000),
            under(50),
        ),
        Figure("cursor_read_p99_us", "the same, p99", percentile(read_us, 99), "µs", under(1000), under(50)),
    ]


async def pages(folder: Path, store: str, rounds: int) -> list[float]:
    """Milliseconds of each page of a 300 KB result, read to its end by cursor ``rounds`` times."""
    milliseconds = list[float]()
    body = (await asyncio.to_thread(responses.issues, _KB)).encode()
    async with context_store.opened(folder, store) as parts:
        results = parts.services.results
        part = Part(PartKind.JSON, "application/json", body)
        result = await results.keep(WHO, "bench_issues", "", [part], ToolPolicy())
        for number in range(rounds + 1):
            cursor: str | None = results.cursor_at(WHO, result, Position(result.handle, 0, 0))
            back = b""
            while cursor is not None:
                began = time.perf_counter()
                page = await results.read(WHO, cursor=cursor, budget_tokens=4_000)
                if number:  # the first round loads the vocabulary
                    milliseconds.append((time.perf_counter() - began) * 1000)
                cursor, back = page.next_cursor, back + page.text.encode()
            if back != body:
                raise RuntimeError("pages put together are not what was stored")
    return milliseconds
