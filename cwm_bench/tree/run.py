"""``cwm bench tree``: going back in a conversation on the real engine, and what recording adds to a turn."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

from cwm import __version__
from cwm.settings import Settings
from cwm.stack.local import LocalStack
from cwm_bench.harness import goals
from cwm_bench.harness.figures import Report
from cwm_bench.harness.folder import own_folder, own_plan
from cwm_bench.tree import checkout, recording
from cwm_bench.tree.parts import TreePart


async def run(
    settings: Settings, progress: Callable[[str], None], parts: Sequence[TreePart]
) -> tuple[Report, bool]:
    """Measure ``parts`` once, in a temporary folder; going back on a stack of its own.

    The flag is False when a branch continues differently from a cold run although the engine computes in float32.
    """
    sound = True
    report = Report("tree", {"cwm": __version__, "machine": platform.machine()})
    async with own_folder(settings.local_engine.home.absolute(), progress) as folder:
        if TreePart.CHECKOUT in parts:
            plan = own_plan(settings, folder, progress)
            async with LocalStack(plan, report=progress) as stack:
                report.context |= {"model": stack.model_name, "dtype": plan.dtype}
                figures = await checkout.measure(stack, folder, progress)
            report.sections += checkout.sections(figures)
            report.summary |= checkout.summary(figures)
            sound = plan.dtype != "float32" or all(each.exact for each in figures.checkouts)
        if TreePart.RECORDING in parts:
            times = await recording.measure(folder, progress)
            report.sections.append(goals.section("recording a turn", times, recording.NOTE))
            report.summary |= goals.summary(times)
    return report, sound
