"""``cwm bench …``: measurements on the real engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from cwm.cli.console import Interrupts, load_settings, run_to_end

if TYPE_CHECKING:
    from cwm.bench.figures import Report

ModelOption: TypeAlias = Annotated[
    str | None, typer.Option(help="smollm2-135m, tiny, or a folder with weights; instead of CWM_MODEL.")
]
JsonFileOption: TypeAlias = Annotated[
    Path | None, typer.Option("--json", help="Also write everything to this file.", metavar="FILE")
]

app = typer.Typer(no_args_is_help=True, help="Measure CWM on a local engine of its own.")


@app.callback()
def bench() -> None:
    """Measure CWM on a local engine of its own."""


@app.command("main")
def bench_main(
    model: ModelOption = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each pass-through measurement.")] = 60,
    json_file: JsonFileOption = None,
) -> None:
    """Pass-through, freeze, thaw, lists, memory and start of the gateway; medians and ratios of one run."""
    settings = load_settings(model=model)

    async def work(_: Interrupts) -> Report:
        from cwm.bench.main import run

        return await run(settings, lambda line: print(line, file=sys.stderr, flush=True), requests=requests)

    _show(run_to_end(work), json_file)


@app.command("planner")
def bench_planner(
    model: ModelOption = None,
    rounds: Annotated[int, typer.Option(min=3, help="Thaws of each kind, size and tier.")] = 15,
    json_file: JsonFileOption = None,
) -> None:
    """Thaws that load, that recompute, and that the planner chooses for, by size and tier."""
    settings = load_settings(model=model)

    async def work(_: Interrupts) -> Report:
        from cwm.bench.planner import run

        return await run(settings, lambda line: print(line, file=sys.stderr, flush=True), rounds=rounds)

    _show(run_to_end(work), json_file)


def _show(report: Report, json_file: Path | None) -> None:
    from rich.console import Console

    report.print(Console())
    if json_file is not None:
        report.write(json_file)
