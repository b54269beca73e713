"""The temporary folder of a benchmark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cwm.stack.leftovers import clear_abandoned, temporary_folder


@asynccontextmanager
async def own_folder(home: Path, report: Callable[[str], None]) -> AsyncIterator[Path]:
    """One that goes with the block; what benchmarks that were killed have left goes before. Raises StackError."""
    await clear_abandoned(home, report)
    with temporary_folder(home, "cwm-bench-") as (folder, _):
        yield folder
