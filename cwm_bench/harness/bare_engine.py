"""vLLM without a cache: no prefix caching and no LMCache; its other flags are those of the stack."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cwm.stack.child import Child
from cwm.stack.commands import Commands, PartName
from cwm.stack.environment import Pins, prepare_environment
from cwm.stack.health import Health
from cwm.stack.leftovers import socket_folder
from cwm.stack.logs import fresh_log
from cwm.stack.models import prepare_model
from cwm.stack.part import Hooks, Part, Recipe
from cwm.stack.plan import StackPlan
from cwm.stack.ports import LOOPBACK, ReservedPorts, machine_locks


@asynccontextmanager
async def bare_engine(plan: StackPlan, folder: Path, report: Callable[[str], None]) -> AsyncIterator[str]:
    """Yield the engine's URL after its first answer; stop it when the block ends. Raises StackError."""
    with socket_folder(plan.home) as sockets:
        async with _engine(plan, folder, sockets, report) as url:
            yield url


@asynccontextmanager
async def _engine(
    plan: StackPlan, folder: Path, sockets: Path, report: Callable[[str], None]
) -> AsyncIterator[str]:
    environment = await prepare_environment(plan.home, Pins.for_device(plan.device), report, plan.withheld)
    model = await prepare_model(plan.model, plan.home, environment, report, plan.withheld)
    reserved = ReservedPorts.take(plan.ports, machine_locks(plan.home))
    health = Health()
    commands = Commands(plan, environment, model, reserved.chosen, folder / "no keyring", sockets)
    port = reserved.chosen.vllm
    url = f"http://{LOOPBACK}:{port}"
    recipe = Recipe(
        "vllm", "vLLM without a cache", without_cache(commands.vllm()), commands.vllm_variables(),
        lambda: health.responds(f"{url}/health"),
        start_seconds=900, stop_seconds=20, before_start=lambda: reserved.release("vllm"), port=port,
        warm_up=lambda: health.warm_up(url, commands.served_name, plan.chunk_size),
        withheld=plan.withheld,
    )  # fmt: skip
    part = Part(recipe, [], fresh_log(folder, "vllm"), Hooks(report, _ignore, _look, _clear))
    try:
        await part.start()
        yield url
    finally:
        await part.stop()
        await health.close()
        reserved.end()


def without_cache(arguments: Sequence[str]) -> list[str]:
    """Change a command line of vLLM: no connection to LMCache, no prefix caching."""
    at = arguments.index("--kv-transfer-config")
    return [*arguments[:at], *arguments[at + 2 :], "--no-enable-prefix-caching"]


def _ignore(_name: PartName, _child: Child) -> None:
    """No run file: the children end with this process."""


async def _look(_name: PartName) -> None:
    """It has no shared memory that would have to be recorded before a crash."""


async def _clear(_name: PartName) -> None:
    """A stopped engine leaves nothing behind."""
