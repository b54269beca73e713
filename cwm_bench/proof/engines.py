"""The engines of ``cwm bench proof``, one for each layout and type."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from cwm import shipped
from cwm.settings import Settings
from cwm.stack.environment import Pins, prepare_environment
from cwm.stack.plan import StackPlan
from cwm_bench.harness.folder import own_plan
from cwm_bench.proof.parts import Layout

Dtype = Literal["float32", "bfloat16"]
DTYPES: Final[tuple[Dtype, ...]] = ("float32", "bfloat16")

_FP8: Final = "--kv-cache-dtype fp8"
# On a CPU LMCache moves KV of several groups in this mode alone; on a GPU it is the default.
_MODE: Final = {"LMCACHE_MP_TRANSFER_MODE": "lmcache_driven"}


def is_possible(layout: Layout, dtype: Dtype) -> bool:
    """VLLM has no KV of eight bits for a model in float32."""
    return layout is not Layout.FP8 or dtype == "bfloat16"


async def plan_of(
    layout: Layout, dtype: Dtype, settings: Settings, folder: Path, report: Callable[[str], None]
) -> StackPlan:
    """The plan of an engine that keeps everything in ``folder``. Raises StackError."""
    local = settings.local_engine.model_copy(update={"dtype": dtype})
    if layout is Layout.FP8:
        local = local.model_copy(update={"engine_args": f"{local.engine_args} {_FP8}".strip()})
    if layout is Layout.WINDOWS:
        model = await _windowed_model(settings, folder, report)
        local = local.model_copy(update={"model": str(model)})
    plan = own_plan(replace(settings, local_engine=local), folder, report)
    if layout is Layout.WINDOWS:
        plan = replace(plan, serving_variables={**plan.serving_variables, **_MODE})
    return plan


async def _windowed_model(settings: Settings, folder: Path, report: Callable[[str], None]) -> Path:
    home = settings.local_engine.home.absolute()
    environment = await prepare_environment(home, Pins.for_device("cpu"), report, settings.upstream_variables)
    script, model = shipped.folder("engine") / "tools/make_windowed_model.py", folder / "tiny-windowed"
    command = [str(environment.python), str(script), str(model)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    return model
