"""``cwm bench main``: pass-through, freeze, thaw, lists, memory and start of the gateway, on the real engine."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cwm import __version__
from cwm.settings import Settings
from cwm.stack.local import LocalStack
from cwm_bench.harness.agent import Agent, agent
from cwm_bench.harness.corpus import read_corpus
from cwm_bench.harness.figures import Report, Section, median
from cwm_bench.harness.folder import own_folder, own_plan
from cwm_bench.harness.gateway import Gateway, engine_variables, gateway
from cwm_bench.harness.postgres import postgres
from cwm_bench.harness.schedule import Schedule
from cwm_bench.main import first_byte, pass_through, records
from cwm_bench.main.estimate import WITHOUT_ENGINE_SECONDS, engine_speed, estimates
from cwm_bench.main.parts import Part, Repetitions
from cwm_bench.main.windows import SIZES, Bench

_IDLE_SESSIONS = 1000
_STARTS = 3
# The thaws from disk begin with a loss of all that Redis has. The watchdog and the patrol would store it again. A GPU computes
# a small model's context sooner than any tier loads it, so the gateway may not choose: loading is what is measured.
_LOADING = {"CWM_PATROL_WINDOWS": "0", "CWM_WATCHDOG_SECONDS": "0", "CWM_THAW_PLAN": "load"}


async def run(
    settings: Settings,
    progress: Callable[[str], None],
    publish: Callable[[Report], None],
    parts: Sequence[Part],
    repetitions: Repetitions,
) -> Report:
    """Measure ``parts`` once, on a stack of its own in a temporary folder.

    ``publish`` gets the report after each part, whose table is then the last. Without a part that needs the engine
    none is started.
    """
    report = Report("main", {"cwm": __version__, "machine": platform.machine(), "parts": []})
    schedule: Schedule[Part] = Schedule(report, {}, progress, publish)
    home = settings.local_engine.home.absolute()
    async with own_folder(home, progress) as folder:
        if set(parts) <= WITHOUT_ENGINE_SECONDS.keys():
            schedule.expect({part: WITHOUT_ENGINE_SECONDS[part] for part in parts})
        else:
            progress(f"parts: {', '.join(parts)}; the engine starts, then says how long they take")
            await _on_engine(settings, folder, schedule, parts, repetitions)
        await schedule.measure(Part.START, partial(_starts, folder))
        await schedule.measure(Part.LISTS, partial(_lists, folder, home))
    return report


async def _on_engine(
    settings: Settings,
    folder: Path,
    schedule: Schedule[Part],
    parts: Sequence[Part],
    repetitions: Repetitions,
) -> None:
    plan = own_plan(settings, folder, schedule.progress)
    async with (
        LocalStack(plan, report=schedule.progress) as stack,
        gateway({**engine_variables(stack, folder), **_LOADING}, folder / "gateway.log") as endpoint,
        agent(endpoint.url, stack.model_name) as client,
    ):
        started_mb = endpoint.rss_mb()
        corpus = await read_corpus(stack, max(SIZES) + 64)
        schedule.report.context["model"] = stack.model_name
        schedule.progress("measuring the speed of the engine")
        speed = await engine_speed(client.http, stack.vllm_url, stack.model_name, corpus)
        schedule.expect(estimates(parts, repetitions, speed))
        bench = Bench(stack, client, corpus)
        for part, work in {
            Part.FREEZE: partial(bench.freezes, repetitions, schedule.progress),
            Part.THAW: partial(bench.thaws, repetitions, schedule.progress),
            Part.PASS_THROUGH: partial(
                pass_through.compare,
                stack.vllm_url,
                endpoint.url,
                stack.model_name,
                repetitions,
                schedule.progress,
            ),
            Part.FIRST_BYTE: partial(_first_byte, stack, folder, repetitions, schedule.progress),
            Part.MEMORY: partial(_memory, endpoint, client, started_mb),
        }.items():
            await schedule.measure(part, work)


async def _first_byte(
    stack: LocalStack, folder: Path, repetitions: Repetitions, progress: Callable[[str], None]
) -> tuple[Section, dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        async with first_byte.relay(stack.vllm_url) as relay:
            variables = {**engine_variables(stack, Path(name)), **_LOADING, "CWM_VLLM_URL": relay.url}
            async with gateway(variables, folder / "first_byte.log") as endpoint:
                return await first_byte.measure(relay, endpoint.url, stack.model_name, repetitions, progress)


async def _memory(endpoint: Gateway, client: Agent, started_mb: float) -> tuple[Section, dict[str, Any]]:
    before = endpoint.rss_mb()
    for _ in range(_IDLE_SESSIONS):
        await client.tool("session_create")
    after = endpoint.rss_mb()
    section = Section("memory of the gateway process", ("figure", "value"))
    section.rows += [
        ("at start, MB", started_mb),
        ("after the parts above, MB", before),
        (f"with {_IDLE_SESSIONS} sessions more, MB", after),
    ]
    return section, {"memory_start_mb": started_mb, "memory_1000_sessions_mb": after}


async def _starts(folder: Path) -> tuple[Section, dict[str, Any]]:
    seconds = median([await _start(folder) for _ in range(_STARTS)])
    section = Section("start of the gateway process", ("figure", "value"), note=f"median of {_STARTS}")
    section.rows.append(("until it answers, s", seconds))
    return section, {"start_seconds": seconds}


async def _start(folder: Path) -> float:
    """Seconds until a gateway with a new registry answers, on a machine that does nothing else."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        variables = {"CWM_DB_PATH": f"{name}/cwm.db", "CWM_SECRET_FILE": f"{name}/secret"}
        async with gateway(variables, folder / "start.log") as endpoint:
            return endpoint.start_seconds


async def _lists(folder: Path, home: Path) -> tuple[Section, dict[str, Any]]:
    async with postgres(home) as url:
        return await records.lists({"sqlite": records.sqlite_url(folder), "postgres": url})
