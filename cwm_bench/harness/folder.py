"""The temporary folder of a benchmark, and the engine in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from cwm.settings import Settings
from cwm.stack.leftovers import clear_abandoned, temporary_folder
from cwm.stack.plan import StackPlan, plan_from_settings


@asynccontextmanager
async def own_folder(home: Path, report: Callable[[str], None]) -> AsyncIterator[Path]:
    """A folder that is removed with the block; leftovers of killed benchmarks are removed before. Raises StackError."""
    await clear_abandoned(home, report)
    with temporary_folder(home, "cwm-bench-") as (folder, _):
        yield folder


def own_plan(settings: Settings, folder: Path, report: Callable[[str], None]) -> StackPlan:
    """An engine that keeps everything in ``folder``, with a Redis of its own and vLLM's development endpoints."""
    storage = settings.storage.model_copy(update={"storage_path": folder / "storage", "redis_url": None})
    plan = plan_from_settings(
        storage, settings.local_engine, withheld=settings.upstream_variables, log=report
    )
    return replace(plan, dev_endpoints=True, run_folder=folder / "run")
