"""``cwm bench agents``: what CWM's LLM face costs agents, on the real engine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cwm import __version__
from cwm.settings import Settings
from cwm.stack.local import LocalStack
from cwm_bench.agents import resume, traffic
from cwm_bench.agents.parts import SECONDS, AgentsPart
from cwm_bench.agents.sides import sides
from cwm_bench.harness.figures import Report
from cwm_bench.harness.folder import own_folder, own_plan
from cwm_bench.harness.schedule import Schedule


async def run(
    settings: Settings,
    progress: Callable[[str], None],
    publish: Callable[[Report], None],
    parts: Sequence[AgentsPart],
    litellm: Path | None,
) -> Report:
    """Measure ``parts`` once, on a stack of its own in a temporary folder; ``publish`` gets the report after each."""
    report = Report(
        "agents",
        {"cwm": __version__, "machine": platform.machine(), "cores": os.cpu_count(), "parts": []},
    )
    schedule: Schedule[AgentsPart] = Schedule(report, {}, progress, publish)
    schedule.expect({part: SECONDS[part] for part in parts})
    async with own_folder(settings.local_engine.home.absolute(), progress) as folder:
        plan = own_plan(settings, folder, progress)
        async with LocalStack(plan, report=progress) as stack:
            report.context |= {"model": stack.model_name, "dtype": plan.dtype}
            if set(parts) - {AgentsPart.RESUME}:
                async with sides(stack, folder, litellm, progress) as compared:
                    for part, work in (
                        (AgentsPart.FIRST_BYTE, traffic.first_bytes),
                        (AgentsPart.THROUGHPUT, traffic.throughput),
                    ):
                        await schedule.measure(part, partial(work, compared, stack.model_name, progress))
            await schedule.measure(AgentsPart.RESUME, partial(resume.measure, stack, folder, progress))
    return report
