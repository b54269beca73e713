"""Assembles the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from cwm.cli import context, engines, keys, sessions, turns, upstreams, windows
from cwm.cli.audit import command as audit
from cwm.cli.connect.command import connect
from cwm.cli.demo.command import demo
from cwm.cli.doctor import doctor
from cwm.cli.engine import command as engine
from cwm.cli.reconcile import reconcile
from cwm.cli.room.command import room
from cwm.cli.serve import serve
from cwm.cli.stdio import stdio
from cwm.cli.storage import person, registry
from cwm.cli.storage.migrate import migrate
from cwm.cli.terminal.arguments import Commands
from cwm.cli.terminal.console import fail, lines_into_log
from cwm.cli.up import up
from cwm_bench import command as bench

_SERVING: Final = {"room", "serve", "stdio", "up"}
"""Commands whose purpose is not their output."""
_LOGGED: Final = {*_SERVING, "migrate"}
"""Commands that containers run: what they say may be JSON."""

app = typer.Typer(
    name="cwm",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Freeze, thaw and clone the context windows of LLMs served by vLLM + LMCache.",
)


@app.callback()
def root(
    invocation: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda requested: _version(requested=requested),
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Options before the command."""
    if invocation.invoked_subcommand in _LOGGED and os.environ.get("CWM_LOG_FORMAT", "").lower() == "json":
        lines_into_log("INFO")
    if sys.stdout is None and invocation.invoked_subcommand not in _SERVING:
        fail("CWM-4001", "Standard output is closed: the command's output would be lost.")
    if sys.stdin is None and invocation.invoked_subcommand != "stdio":
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - as long as the process


def _version(*, requested: bool) -> None:
    if requested:
        from cwm import __version__

        print(f"cwm {__version__}")
        raise typer.Exit


_RUN, _LOOK, _CLIENT = "Run", "Check", "Use a running gateway"

app.command(rich_help_panel=_RUN)(demo)
app.command(rich_help_panel=_RUN)(up)
app.command(rich_help_panel=_RUN)(serve)
app.command(rich_help_panel=_RUN)(stdio)
app.command(rich_help_panel=_RUN)(room)
app.command(rich_help_panel=_LOOK)(doctor)
app.command(rich_help_panel=_LOOK)(migrate)
app.command(rich_help_panel=_LOOK)(reconcile)
app.add_typer(engine.app, name="engine", rich_help_panel=_RUN)
app.add_typer(keys.app, name="keys", rich_help_panel=_RUN)
app.add_typer(upstreams.app, name="upstreams", rich_help_panel=_RUN)
app.add_typer(audit.app, name="audit", rich_help_panel=_LOOK)
app.add_typer(bench.app, name="bench", rich_help_panel=_LOOK)
app.add_typer(person.app, name="person", rich_help_panel=_LOOK)
app.add_typer(registry.app, name="registry", rich_help_panel=_LOOK)
app.add_typer(context.app, name="context", rich_help_panel=_LOOK)
app.command(rich_help_panel=_CLIENT)(connect)
app.add_typer(engines.app, name="engines", rich_help_panel=_CLIENT)
app.add_typer(windows.app, name="windows", rich_help_panel=_CLIENT)
app.add_typer(sessions.app, name="sessions", rich_help_panel=_CLIENT)
app.add_typer(turns.app, name="turns", rich_help_panel=_CLIENT)
