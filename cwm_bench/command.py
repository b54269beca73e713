"""``cwm bench …``: measurements on the real engine."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from cwm.cli.terminal.console import FOUND_FAULTS, load_settings, run_to_end
from cwm_bench.agents.parts import AgentsPart
from cwm_bench.fleet.parts import FleetPart, FleetRun
from cwm_bench.harness.schedule import in_order
from cwm_bench.main.parts import THOROUGH, Part, Repetitions
from cwm_bench.proof.parts import Company, Layout
from cwm_bench.tree.parts import TreePart

if TYPE_CHECKING:
    from cwm.cli.terminal.colours import Colours
    from cwm_bench.harness.figures import Report

_Model: TypeAlias = Annotated[
    str | None, typer.Option(help="smollm2-135m, tiny, or a folder with weights; instead of CWM_MODEL.")
]
_JsonFile: TypeAlias = Annotated[
    Path | None, typer.Option("--json", help="Also write everything to this file.", metavar="FILE")
]

app = typer.Typer(no_args_is_help=True, help="Measure CWM on a local engine of its own.")


@app.callback()
def bench() -> None:
    """Measure CWM on a local engine of its own."""


@app.command("main")
def bench_main(
    model: _Model = None,
    only: Annotated[
        list[Part] | None, typer.Option(help="Measure this part; again for more.", show_default="all parts")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Repeat everything more often, in about 2.5 times the time.")
    ] = False,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests to each side, with and without the gateway, at least.",
            show_default="10; 40 with --thorough",
        ),
    ] = None,
    json_file: _JsonFile = None,
) -> None:
    """Pass-through, freeze, thaw, lists, memory and start of the gateway; medians and ratios of one run.

    It says first how long it takes. Each table is printed, and the JSON file replaced, as soon as its part is
    measured: after Ctrl-C they stand.
    """
    settings = load_settings(model=model)
    repetitions = THOROUGH if thorough else Repetitions()
    if requests is not None:
        repetitions = replace(repetitions, requests=requests)

    from cwm_bench.main.run import run

    parts, publish = in_order(Part, only or []), partial(_publish_part, json_file)
    run_to_end(lambda _: run(settings, _progress, publish, parts, repetitions)).print_summary(_console())


@app.command("planner")
def bench_planner(
    model: _Model = None,
    rounds: Annotated[int, typer.Option(min=3, help="Thaws of each kind, size and tier.")] = 15,
    size: Annotated[
        list[int] | None,
        typer.Option(
            min=256, max=8064, help="Tokens of a window; again for more.", show_default="256 to 8064"
        ),
    ] = None,
    json_file: _JsonFile = None,
) -> None:
    """Thaws that load, thaws that recompute, and thaws that the planner decides, by size and tier."""
    settings = load_settings(model=model)

    from cwm_bench.planner import SIZES, run

    sizes = size or SIZES
    _publish(run_to_end(lambda _: run(settings, _progress, rounds=rounds, sizes=sizes)), json_file)


@app.command("faults")
def bench_faults(
    cases: Annotated[int, typer.Option(min=1, help="Cases to run.")] = 200,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeats the cases of the run that printed this seed; default: a new one."),
    ] = None,
    model: Annotated[str, typer.Option(help="smollm2-135m, tiny, or a folder with weights.")] = "tiny",
    hostile: Annotated[
        bool,
        typer.Option(
            "--hostile",
            help="Instead: the request of each route and tool that costs most, by one tenant, beside another's turns. No engine.",
        ),
    ] = False,
    only: Annotated[
        str, typer.Option(help="With --hostile: routes and tools with this in their name.", metavar="TEXT")
    ] = "",
    json_file: _JsonFile = None,
) -> None:
    """Damage stored chunks in Redis and on disk, thaw, and report what detected each fault, and where.

    Exit code 1 when a thawed session continued differently from the uninterrupted one; with --hostile when something of
    the other tenant was lost.
    """
    if hostile:
        _hostile(only, json_file)
        return
    settings = load_settings(model=model)

    from cwm_bench.faults.run import run

    report = run_to_end(lambda _: run(settings, _progress, cases, seed))
    _publish(report, json_file)
    if report.summary["wrong_served"]:
        raise typer.Exit(FOUND_FAULTS)


def _hostile(only: str, json_file: Path | None) -> None:
    home = _home()

    from cwm_bench.hostile.run import HostileRun, run

    report = run_to_end(lambda _: run(_progress, HostileRun(only=only), home))
    _publish(report, json_file)
    if report.summary["lost"]:
        raise typer.Exit(FOUND_FAULTS)


@app.command("proof")
def bench_proof(
    cases: Annotated[
        int, typer.Option(min=1, help="Thaws of right KV, and as many planted faults, in each cell.")
    ] = 30,
    only: Annotated[
        list[Company] | None,
        typer.Option(help="In this company alone; again for more.", show_default="alone and in company"),
    ] = None,
    layout: Annotated[
        list[Layout] | None,
        typer.Option(help="Of this layout of KV alone; again for more.", show_default="all"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16.", show_default="both, one after the other")
    ] = None,
    speed: Annotated[bool, typer.Option(help="Also time thaws of 7,900 tokens.")] = True,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeats the run that printed this seed.")] = None,
    model: _Model = None,
    json_file: _JsonFile = None,
) -> None:
    """Thaw right KV and KV that was made wrong above its seal, alone and in company, and count the verdicts.

    Exit code 1 when a fault was missed in float32, or right KV was condemned.
    """
    settings = load_settings(model=model)
    if dtype not in {None, "float32", "bfloat16"}:
        raise typer.BadParameter("must be float32 or bfloat16", param_hint="--dtype")

    from cwm_bench.proof.engines import DTYPES
    from cwm_bench.proof.run import Scope, run

    scope = Scope(
        cases,
        layout or list(Layout),
        [each for each in DTYPES if dtype in {None, each}],
        only or list(Company),
        speed=speed,
    )
    report = run_to_end(lambda _: run(settings, _progress, scope, seed))
    _publish(report, json_file)
    if report.summary["missed_float32"] or report.summary["condemned_right"]:
        raise typer.Exit(FOUND_FAULTS)


@app.command("arms")
def bench_arms(
    model: _Model = None,
    json_file: _JsonFile = None,
) -> None:
    """The same prompts with the cache off, cold, warm in the same process, and warm after the engine was killed.

    Exit code 1 when a greedy continuation differs between them although the engine computes in float32.
    """
    settings = load_settings(model=model)

    from cwm_bench.arms import run

    report, identical = run_to_end(lambda _: run(settings, _progress))
    _publish(report, json_file)
    if not identical:
        raise typer.Exit(FOUND_FAULTS)


@app.command("tree")
def bench_tree(
    model: _Model = None,
    only: Annotated[
        list[TreePart] | None,
        typer.Option(help="Measure this part; again for more.", show_default="all parts"),
    ] = None,
    json_file: _JsonFile = None,
) -> None:
    """Going back to each of 40 turns, what they take up, and what recording adds to a turn.

    Exit code 1 when a branch continued differently from a cold run of its tokens although the engine computes in float32.
    """
    settings = load_settings(model=model)

    from cwm_bench.tree.run import run

    report, exact = run_to_end(lambda _: run(settings, _progress, only or list(TreePart)))
    _publish(report, json_file)
    if not exact:
        raise typer.Exit(FOUND_FAULTS)


@app.command("agents")
def bench_agents(
    model: _Model = None,
    only: Annotated[
        list[AgentsPart] | None,
        typer.Option(help="Measure this part; again for more.", show_default="all parts"),
    ] = None,
    litellm: Annotated[
        Path | None,
        typer.Option(
            help="LiteLLM with its proxy, to measure beside.",
            metavar="PROGRAM",
            show_default="the one on PATH, if any",
        ),
    ] = None,
    json_file: _JsonFile = None,
) -> None:
    """First bytes and throughput on each protocol beside bare vLLM, and what clients compute again when they resume.

    It says first how long it takes. Each table is printed, and the JSON file replaced, as soon as its part is
    measured: after Ctrl-C they stand.
    """
    settings = load_settings(model=model)

    from cwm_bench.agents.run import run

    parts, publish = in_order(AgentsPart, only or []), partial(_publish_part, json_file)
    run_to_end(lambda _: run(settings, _progress, publish, parts, litellm)).print_summary(_console())


@app.command("fleet")
def bench_fleet(
    only: Annotated[
        list[FleetPart] | None,
        typer.Option(help="Measure this part; again for more.", show_default="all parts"),
    ] = None,
    moves: Annotated[int, typer.Option(min=1, help="Moves of a conversation.")] = 20,
    kills: Annotated[int, typer.Option(min=1, help="Engines killed in mid-stream.")] = 20,
    json_file: _JsonFile = None,
) -> None:
    """Conversations that move between two engines, outlive them and leave them, behind two gateways, beside vllm-router.

    It starts two engines of smollm2-135m and one of tiny, and says first how long it takes. Each table is printed, and the
    JSON file replaced, as soon as its part is measured: after Ctrl-C they stand.
    """
    settings = load_settings()

    from cwm_bench.fleet.run import run

    parts, publish = in_order(FleetPart, only or []), partial(_publish_part, json_file)
    run_to_end(lambda _: run(settings, _progress, publish, parts, FleetRun(moves, kills))).print_summary(
        _console()
    )


@app.command("gateway")
def bench_gateway(
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of 400 calls to each server.")] = 9,
    json_file: _JsonFile = None,
) -> None:
    """Tool calls through CWM beside bare FastMCP; changes of cwm.yaml; idle sessions. No engine; extra `embedded`."""
    home = _home()

    from cwm_bench.tool_calls import run

    _publish(run_to_end(lambda _: run(_progress, home, rounds=rounds)), json_file)


@app.command("context")
def bench_context(
    rounds: Annotated[int, typer.Option(min=100, help="Sets and gets of each store.")] = 2_000,
    json_file: _JsonFile = None,
) -> None:
    """Shared context and result budgets: each figure beside its thresholds. No engine; extra `embedded`."""
    home = _home()

    from cwm_bench.context.run import ContextRun, run

    extent = ContextRun(operations=rounds)
    _publish(run_to_end(lambda _: run(_progress, extent, home), fast=True), json_file)


@app.command("scale")
def bench_scale(
    windows: Annotated[
        int, typer.Option(min=1_000, help="Windows, and turns, in each database.")
    ] = 1_000_000,
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes of mixed calls.")] = 10,
    rounds: Annotated[int, typer.Option(min=5, help="Repetitions of each list.")] = 30,
    plans: Annotated[bool, typer.Option("--plans", help="Also show the databases' query plans.")] = False,
    json_file: _JsonFile = None,
) -> None:
    """A million windows and turns on SQLite and Postgres: lists, searches, statuses; then 200 calls/s. No engine; extra `embedded`."""
    home = _home()

    from cwm_bench.scale.run import ScaleRun, run

    extent = ScaleRun(windows, minutes, rounds, plans)
    _publish(run_to_end(lambda _: run(_progress, extent, home)), json_file)


@app.command("console")
def bench_console(
    windows: Annotated[int, typer.Option(min=1_000, help="Windows in each database.")] = 100_000,
    turns: Annotated[int, typer.Option(min=120, help="Turns of the long conversation.")] = 500,
    rounds: Annotated[int, typer.Option(min=5, help="Times that each page is asked for.")] = 30,
    json_file: _JsonFile = None,
) -> None:
    """Every page of the console with 100,000 windows, 10,000 conversations and one of 500 turns: time and size. No engine; extra `embedded`."""
    home = _home()

    from cwm_bench.console.run import ConsoleRun, run

    extent = ConsoleRun(windows, turns, rounds)
    _publish(run_to_end(lambda _: run(_progress, extent, home)), json_file)


def _home() -> Path:
    """The folder whose run files name what a killed run left behind: the next run removes it."""
    return load_settings(upstreams=False).local_engine.home.absolute()


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _console() -> Colours:
    from cwm.cli.terminal.colours import Colours

    return Colours()


def _publish_part(json_file: Path | None, report: Report) -> None:
    """The last part."""
    report.sections[-1].print(_console())
    if json_file is not None:
        report.write(json_file)


def _publish(report: Report, json_file: Path | None) -> None:
    report.print(_console())
    if json_file is not None:
        report.write(json_file)
