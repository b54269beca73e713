"""``cwm engines …``: works with the engines of a running gateway."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from cwm.cli.gateway.client import JsonOption, UrlOption, call
from cwm.cli.terminal.console import FOUND_FAULTS, end_with_json, print_facts, print_json, print_table
from cwm.cli.terminal.verdicts import basis
from cwm.cli.terminal.wording import comma_list, count, moment

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, drain and upgrade the engines of a running gateway, and move sessions.",
)

Name = Annotated[str, typer.Argument(help="Name of the engine, from `cwm engines list`.", metavar="ENGINE")]

_QUIET_SECONDS: Final = 2.0


@app.command("list")
def list_engines(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the engines: whether each answers, its sessions, its load, and what its KV depends on."""
    answer = call(url, "engine_list", {})
    end_with_json(answer, as_json=as_json)
    print_table(
        ("ENGINE", "STATE", "SINCE", "SESSIONS", "RUNNING", "MODELS", "DEPLOYMENT"),
        [
            (
                each["name"] or "(the only one)",
                _state(each),
                moment(each.get("draining_since") or each.get("since")),
                f"{each['sessions']:,}",
                _running(each),
                comma_list(each["deployments"]),
                comma_list(dict.fromkeys(each["deployments"].values())),
            )
            for each in answer["engines"]
        ],
    )


@app.command()
def show(name: Name, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one engine, with its deployment of each model."""
    answer = call(url, "engine_list", {"engine": name})
    end_with_json(answer, as_json=as_json)
    (engine,) = answer["engines"]
    print_facts(
        [
            ("engine", engine["name"]),
            ("state", _state(engine)),
            *([("reason", engine["reason"])] if "reason" in engine else []),
            ("since", moment(engine.get("since"))),
            ("draining since", moment(engine.get("draining_since"))),
            ("sessions", f"{engine['sessions']:,}"),
            ("running", _running(engine)),
            *((f"model {model}", deployment) for model, deployment in engine["deployments"].items()),
        ]
    )


@app.command()
def move(
    session: Annotated[str, typer.Argument(help="Id of the session.", metavar="SESSION")],
    engine: Name,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Move a session to another engine with its KV, and prove that it is the same there."""
    answer = call(url, "session_move", {"session_id": session, "engine": engine}, _late())
    end_with_json(answer, as_json=as_json)
    canary = answer["canary"]
    print(
        f"Session {session} is on {answer['target']} now, after {answer['move_ms']:,} ms: "
        f"{answer['tokens_restored']:,} of {count(answer['token_count'], 'token')} restored, "
        f"{answer['tokens_recomputed']:,} computed; verification: {canary['result']}{basis(canary)}."
    )
    if "source" in answer and not answer["source_answered"]:
        print(f"Warning: {answer['source']} did not answer.", file=sys.stderr)


@app.command()
def drain(
    engine: Name,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it take new sessions again; those that moved stay.")
    ] = False,
    timeout: Annotated[
        int, typer.Option(min=1, max=3600, help="Seconds to go on moving sessions.", metavar="SECONDS")
    ] = 300,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Move all sessions of an engine to others, and give it no new ones. Status 1 if sessions are left; repeat it to go on."""
    arguments = {"engine": engine, "undo": undo or None, "timeout_seconds": timeout}
    answer = call(url, "engine_drain", arguments, _late())
    if as_json:
        print_json(answer)
    elif undo:
        print(f"Engine {engine} takes new sessions again.")
    else:
        _print_drained(answer)
    if not answer["success"]:
        raise typer.Exit(FOUND_FAULTS)


@app.command()
def upgrade(
    model: Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL")],
    to: Annotated[
        str | None,
        typer.Option(
            help="The new deployment, or an engine of it; without it only show how far it is.", metavar="NEW"
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Prefer no deployment; windows that were frozen again stay so.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Send new sessions of a model to a new deployment, and have its windows frozen there again. Status 1 while windows are left; repeat it to see how far it is."""
    answer = call(url, "engine_upgrade", {"model": model, "to": to, "undo": undo or None})
    if as_json:
        print_json(answer)
    else:
        _print_upgraded(answer)
    if answer["windows_left"]:
        raise typer.Exit(FOUND_FAULTS)


def _print_upgraded(answer: dict[str, Any]) -> None:
    new = answer.get("deployment")
    if new is None:
        print(f"Model {answer['model']} is not being upgraded.")
    else:
        windows_done, windows_left = answer["windows_done"], answer["windows_left"]
        print(
            f"Model {answer['model']} goes to {new} since {moment(answer['since'])}: "
            f"{count(windows_done, 'window')} frozen there, {windows_left:,} left."
        )
    print_table(
        ("ENGINE", "DEPLOYMENT", ""),
        [
            (name, deployment, "" if new is None else "new" if deployment == new else "old")
            for name, deployment in answer["engines"].items()
        ],
    )


def _print_drained(answer: dict[str, Any]) -> None:
    own_sessions, elsewhere = answer["stayed"], answer["stayed_elsewhere"]
    session_count = len(own_sessions) + elsewhere
    end = "none is left" if not session_count else f"{count(session_count, 'session')} stayed"
    computed = answer.get("to_compute", 0)
    new = f"{computed:,} to be computed by the new deployment, " if computed else ""
    print(f"Engine {answer['engine']}: {count(answer['moved'], 'session')} moved, {new}{end}.")
    if own_sessions:
        print_table(
            ("SESSION", "CODE", "WHY"),
            [(each["session_id"], each["code"], each["message"]) for each in own_sessions],
        )
    if elsewhere:
        print(f"{count(elsewhere, 'session')} of other tenants stayed; their audit logs say why.")
    if not answer["answers"]:
        print(f"Warning: {answer['engine']} does not answer.", file=sys.stderr)


def _state(engine: dict[str, Any]) -> str:
    words = ["answers" if engine["answers"] else "away"]
    return ", ".join([*words, "draining"] if "draining_since" in engine else words)


def _running(engine: dict[str, Any]) -> str:
    return f"{engine['running']:,}" if "running" in engine else "-"


def _late() -> Callable[[str], None]:
    """Prints steps to stderr, of a command that takes long."""
    began = time.monotonic()

    def show_step(step: str) -> None:
        if time.monotonic() - began > _QUIET_SECONDS:
            print(f"{step} …", file=sys.stderr, flush=True)

    return show_step
