"""``cwm demo``: freezes a context, kills the engine, thaws, and compares."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm.cli.gateway.client import ToolRefusedError
from cwm.cli.serve import log_as
from cwm.cli.terminal.console import FOUND_FAULTS, Interrupts, fail, load_settings, print_json, run_to_end
from cwm.cli.up import at_stack

if TYPE_CHECKING:
    from cwm.cli.demo.outcome import DemoResult
    from cwm.cli.demo.text import Narrator
    from cwm.settings import Settings
    from cwm.stack.local import PartName

_TOKENS, _TOKENS_TINY = 6500, 2000


class Victim(StrEnum):
    VLLM = "vllm"
    LMCACHE = "lmcache"
    BOTH = "both"


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


_KILLED: dict[Victim, tuple[PartName, ...]] = {
    Victim.VLLM: ("vllm",),
    Victim.LMCACHE: ("lmcache",),
    Victim.BOTH: ("vllm", "lmcache"),
}


def demo(
    model: Annotated[
        str | None, typer.Option(help="smollm2-135m, tiny, or a folder with weights; instead of CWM_MODEL.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=300, help="Tokens of context to build up; default: 6500, or 2000 for tiny."),
    ] = None,
    kill: Annotated[
        Victim, typer.Option(help="What to kill (SIGKILL); 'both' leaves nothing in the engine's memory.")
    ] = Victim.BOTH,
    dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="Data type of weights and KV; instead of CWM_DTYPE.", show_default="float32 on a CPU"
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object; the narration goes to stderr."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with database, KV and logs.")] = False,
) -> None:
    """Freeze an agent's context, kill the engine, thaw the context, and show that it continues token for token the same.

    Runs its own engine in a temporary folder and does not touch your windows. Exit code 1 when a claim of the demo
    does not hold.
    """
    from cwm.cli.demo.text import Narrator

    settings = load_settings(model=model)
    if dtype is not None:
        local = settings.local_engine.model_copy(update={"dtype": dtype.value})
        settings = replace(settings, local_engine=local)
    narrator = Narrator(to_stderr=as_json)
    killed = _KILLED[kill]
    target = tokens or (_TOKENS_TINY if settings.local_engine.model == "tiny" else _TOKENS)

    async def work(_: Interrupts) -> DemoResult:
        with _folder(narrator, keep=keep) as folder:
            return await _tell(_embedded(settings, folder), folder, narrator, killed, target, keep=keep)

    try:
        result = run_to_end(work)
    except ToolRefusedError as refused:
        fail(refused.code, refused.message)
    untrue = result.untrue()
    if as_json:
        print_json(result.as_dict())
    else:
        narrator.step("What happened")
        narrator.facts(result.facts())
    if untrue:
        fail("CWM-9001", f"The demo's claims do not hold: {'; '.join(untrue)}.", FOUND_FAULTS)


async def _tell(
    settings: Settings,
    folder: Path,
    narrator: Narrator,
    killed: tuple[PartName, ...],
    target: int,
    *,
    keep: bool,
) -> DemoResult:
    from cwm.cli.demo.gateway import gateway
    from cwm.cli.demo.story import Story
    from cwm.stack.leftovers import clear_abandoned
    from cwm.stack.local import LocalStack, plan_from_settings

    log_as(settings)
    narrator.step("Start vLLM, LMCache, Valkey and the gateway")
    await clear_abandoned(settings.local_engine.home.absolute(), narrator.line)
    plan = plan_from_settings(
        settings.storage, settings.local_engine, withheld=settings.upstream_variables, log=narrator.line
    )
    plan = replace(plan, run_folder=folder / "run", temporary=None if keep else folder)
    async with AsyncExitStack() as running:
        with narrator.working("starting"):
            stack = await running.enter_async_context(LocalStack(plan, report=narrator.report))
            endpoint = await running.enter_async_context(gateway(at_stack(settings, stack)))
        narrator.line(f"{stack.model_name} at {endpoint.url}")
        result = await Story(stack, endpoint, narrator, killed, target).tell()
        narrator.step("Stop everything")
    return result


def _embedded(settings: Settings, folder: Path) -> Settings:
    """Default settings in ``folder``, independent of this machine's own gateway.

    Engine and models stay where they are.
    """
    from cwm import settings as groups

    return groups.Settings(
        http=groups.Http(port=0),
        database=groups.Database(db_path=folder / "cwm.db"),
        isolation=groups.Isolation(secret_file=folder / "secret"),
        storage=groups.Storage(storage_path=folder / "storage", cpu_cache_gb=2, redis_cache_gb=2),
        local_engine=settings.local_engine,
        upstream_variables=settings.upstream_variables,
        # Only the thaw may read the window back: the demo reports which tier its KV came from.
        verification=groups.Verification(watchdog_seconds=0),
        retention=groups.Retention(patrol_windows=0),
        # The demo itself reports that the engine dies.
        logging=groups.Logging(log_level="ERROR"),
    )


@contextmanager
def _folder(narrator: Narrator, *, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cwm-demo-"))
    try:
        yield folder
    finally:
        if keep:
            narrator.line(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
