"""``cwm bench main``: pass-through, freeze, thaw, lists, memory and start of the gateway, on the real engine."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from fastmcp import Client

from cwm import __version__
from cwm.adapters.lmcache.client import LmcacheTier
from cwm.settings import Engine, Settings
from cwm.stack.local import LocalStack
from cwm.stack.plan import plan_from_settings
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Report, Section, median
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.gateway import Gateway, engine_variables, gateway
from cwm_bench.harness.mcp_client import mcp_client
from cwm_bench.harness.postgres import postgres
from cwm_bench.main import first_byte, pass_through, records
from cwm_bench.main.windows import Bench

_SIZES = (1024, 2048, 4096, 8064)
_IDLE_SESSIONS = 1000
_STARTS = 3
# The thaws from disk begin with a loss of all that Redis has. Who watches for that, or patrols, would store it again.
_NOT_MENDING = {"CWM_PATROL_WINDOWS": "0", "CWM_WATCHDOG_SECONDS": "0"}


async def run(settings: Settings, report: Callable[[str], None], *, requests: int = 60) -> Report:
    """Measure everything once, on a stack of its own in a temporary folder; ``report`` gets progress."""
    async with own_folder(settings.local_engine.home.absolute(), report) as folder:
        storage = settings.storage.model_copy(update={"storage_path": folder / "storage", "redis_url": None})
        plan = plan_from_settings(
            storage, settings.local_engine, withheld=settings.upstream_variables, log=report
        )
        plan = replace(plan, dev_endpoints=True, run_folder=folder / "run")
        report("starting the gateway")
        started = [await _start(folder) for _ in range(_STARTS)]
        async with LocalStack(plan, report=report) as stack:
            return await _measure(stack, folder, report, requests, median(started))


async def _start(folder: Path) -> float:
    """Seconds until a gateway with a new registry answers, on a machine that does nothing else."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        variables = {"CWM_DB_PATH": f"{name}/cwm.db", "CWM_SECRET_FILE": f"{name}/secret"}
        async with gateway(variables, folder / "start.log") as served:
            return served.start_seconds


async def _measure(
    stack: LocalStack, folder: Path, report: Callable[[str], None], requests: int, start_seconds: float
) -> Report:
    result = Report("main", {"cwm": __version__, "model": stack.model_name, "machine": platform.machine()})
    kv_tier = LmcacheTier(Engine(lmcache_url=stack.lmcache_url, coordinator_url=stack.coordinator_url))
    async with (
        aclosing(kv_tier),
        gateway({**engine_variables(stack, folder), **_NOT_MENDING}, folder / "gateway.log") as served,
        httpx2.AsyncClient(timeout=600, trust_env=False) as http,
        mcp_client(f"{served.url}/mcp") as mcp,
    ):
        started_mb = served.rss_mb()
        bench = Bench(stack, served.url, http, mcp, kv_tier, await read_corpus(stack, max(_SIZES) + 64))

        def add(measured: tuple[Section, dict[str, Any]]) -> None:
            section, summary = measured
            result.sections.append(section)
            result.summary |= summary

        add(await bench.freezes(list(_SIZES), report))
        add(await bench.thaws(list(_SIZES), report))
        report("pass-through, beside the same vLLM called directly")
        add(await pass_through.compare(stack.vllm_url, served.url, stack.model_name, requests))
        report("time to the first byte, in the gateway")
        add(await _first_byte(stack, folder))
        report(f"memory with {_IDLE_SESSIONS} sessions")
        add(await _footprint(served, mcp, started_mb, start_seconds))
    report("lists over 10,000 windows, on SQLite and Postgres")
    async with postgres(stack.plan.home) as url:
        add(await records.lists({"sqlite": records.sqlite_url(folder), "postgres": url}))
    return result


async def _first_byte(stack: LocalStack, folder: Path) -> tuple[Section, dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        async with first_byte.relay(stack.vllm_url) as seen:
            variables = {**engine_variables(stack, Path(name)), **_NOT_MENDING, "CWM_VLLM_URL": seen.url}
            async with gateway(variables, folder / "first_byte.log") as served:
                return await first_byte.measure(seen, served.url, stack.model_name)


async def _footprint(
    served: Gateway, mcp: Client[Any], started_mb: float, start_seconds: float
) -> tuple[Section, dict[str, Any]]:
    before = served.rss_mb()
    for _ in range(_IDLE_SESSIONS):
        await mcp.call_tool("session_create", {})
    section = Section("gateway process", ("figure", "value"))
    section.rows += [
        ("start until it answers, s", start_seconds),
        ("memory at start, MB", started_mb),
        ("memory after the load above, MB", before),
        (f"memory with {_IDLE_SESSIONS} sessions more, MB", served.rss_mb()),
    ]
    summary = {
        "start_seconds": start_seconds,
        "memory_start_mb": started_mb,
        "memory_1000_sessions_mb": served.rss_mb(),
    }
    return section, summary
