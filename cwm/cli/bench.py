"""``cwm bench …``: measurements on the real engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cwm.cli.console import Interrupts, load_settings, run_to_end

if TYPE_CHECKING:
    from cwm.bench.figures import Report

app = typer.Typer(no_args_is_help=True, help="Measure CWM on a local engine of its own.")


@app.callback()
def bench() -> None:
    """Measure CWM on a local engine of its own."""


@app.command("main")
def bench_main(
    model: Annotated[
        str | None, typer.Option(help="smollm2-135m, tiny, or a folder with weights; instead of CWM_MODEL.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each pass-through measurement.")] = 60,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything to this file.", metavar="FILE")
    ] = None,
) -> None:
    """Pass-through, freeze, thaw, lists, memory and start of the gateway; medians and ratios of one run."""
    settings = load_settings(model=model)

    async def work(_: Interrupts) -> Report:
        from cwm.bench.main import run

        return await run(settings, lambda line: print(line, file=sys.stderr, flush=True), requests=requests)

    report = run_to_end(work)
    from rich.console import Console

    report.print(Console())
    if json_file is not None:
        report.write(json_file)
