"""``cwm bench fleet``: conversations that move between engines, and survive them, on real engines."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from functools import partial

from cwm import __version__
from cwm.settings import Settings
from cwm_bench.fleet import beside, drain, kills, moves, traffic
from cwm_bench.fleet.fleet import fleet
from cwm_bench.fleet.parts import FleetPart, FleetRun
from cwm_bench.harness.figures import Report
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.schedule import Schedule


async def run(
    settings: Settings,
    progress: Callable[[str], None],
    publish: Callable[[Report], None],
    parts: Sequence[FleetPart],
    extent: FleetRun,
) -> Report:
    """Measure ``parts`` once, on a stack of its own in a temporary folder; ``publish`` gets the report after each."""
    report = Report(
        "fleet",
        {"cwm": __version__, "machine": platform.machine(), "cores": os.cpu_count(), "parts": []},
    )
    schedule: Schedule[FleetPart] = Schedule(report, {}, progress, publish)
    schedule.expect({part: extent.seconds(part) for part in parts})
    async with (
        own_folder(settings.local_engine.home.absolute(), progress) as folder,
        fleet(settings, folder, progress) as running,
    ):
        stack = running.stack
        report.context |= {
            "models": {engine.name: engine.model_name for engine in stack.engines},
            "dtype": stack.plan.dtype,
            "chunk": stack.chunk_size,
        }
        for part, work in (
            (FleetPart.MOVES, partial(moves.measure, running, extent.moves)),
            (FleetPart.DRAIN, partial(drain.measure, running)),
            (FleetPart.TRAFFIC, partial(traffic.measure, running)),
            (FleetPart.BESIDE, partial(beside.measure, running, folder)),
            (FleetPart.KILLS, partial(kills.measure, running, extent.kills)),
        ):
            await schedule.measure(part, work)
            await running.forget()
    return report
