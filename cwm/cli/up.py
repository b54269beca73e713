"""``cwm up``: runs a local engine and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cwm.cli.serve import HostOption, PortOption, check, log_as, migrated, ready
from cwm.cli.terminal.console import Interrupts, load_settings, run_to_end, tell

if TYPE_CHECKING:
    from cwm.settings import Settings
    from cwm.stack.local import LocalStack


def up(
    model: Annotated[
        str | None, typer.Option(help="smollm2-135m, tiny, or a folder with weights; instead of CWM_MODEL.")
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=64, help="Maximum context length in tokens, instead of CWM_MAX_MODEL_LEN."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Instead of CWM_DEVICE.")
    ] = None,
    storage_path: Annotated[
        Path | None, typer.Option(help="Folder of the stored KV, instead of CWM_STORAGE_PATH.")
    ] = None,
    engines: Annotated[
        int, typer.Option(min=1, max=16, help="Number of engines, each a vLLM with its own LMCache.")
    ] = 1,
) -> None:
    """Start vLLM, LMCache, Valkey and the gateway on this machine, and keep them running until Ctrl-C.

    The first start prepares the engine's own Python environment and the model (a few minutes, about 3 GiB under
    CWM_HOME). Processes that die are restarted. Windows stay in CWM_STORAGE_PATH for the next start. `engines` of cwm.yaml
    are for `cwm serve`: this command serves those that it starts.
    """
    settings = load_settings(
        model=model,
        host=host,
        port=port,
        max_model_len=max_model_len,
        device=device,
        storage_path=storage_path,
    )

    async def work(interrupts: Interrupts) -> None:
        from cwm.stack.errors import StackError
        from cwm.stack.leftovers import clear_abandoned
        from cwm.stack.local import LocalStack, plan_from_settings
        from cwm.stack.locks import storage_lock

        log_as(settings)
        migrating = await check(settings)
        await clear_abandoned(settings.local_engine.home.absolute(), log)
        # A second cwm up is told so, and not how little memory the first one leaves.
        with storage_lock(settings.storage.storage_path.absolute()):
            plan = plan_from_settings(
                settings.storage,
                settings.local_engine,
                withheld=settings.upstream_variables,
                engines=engines,
                log=log,
            )
        plan = replace(plan, gateway_host=settings.http.host, gateway_port=settings.http.port)
        refused = False
        try:
            async with LocalStack(plan, report=log) as stack:
                await migrated(migrating)
                await _serve_until_either_ends(at_stack(settings, stack), stack, interrupts)
                log("stopping the engine")
        except StackError:
            refused = True
            raise
        finally:
            if not refused:
                tell("Stopped. Nothing of this CWM is running any more.")

    run_to_end(work, fast=True)


async def _serve_until_either_ends(settings: Settings, stack: LocalStack, interrupts: Interrupts) -> None:
    """Run the gateway until it or the stack ends. A stack that cannot be kept alive ends the gateway: StackError."""
    from cwm.app import run

    failing = asyncio.create_task(stack.run_until_failure())
    serving = asyncio.create_task(run(settings, ready=ready(interrupts, settings)))
    try:
        done, _ = await asyncio.wait({failing, serving}, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()
    finally:
        for task in (failing, serving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def at_stack(settings: Settings, stack: LocalStack) -> Settings:
    """The settings with the URLs of this stack's engines."""
    from cwm.settings.engines import EngineEntry

    engines = {
        each.name: EngineEntry(
            **{
                **settings.engine.model_dump(),
                "vllm_url": each.vllm_url,
                "vllm_api_key": None,
                "lmcache_url": each.lmcache_url,
                "coordinator_url": stack.coordinator_url,
            }
        )
        for each in stack.engines
    }
    first, *others = engines.values()
    return replace(settings, engine=first, engines=engines if others else {}, starts_engines=True)


def log(line: str) -> None:
    tell(line, timed=True)
