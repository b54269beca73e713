"""An engine as a shell script."""

from __future__ import annotations

import shlex
from pathlib import Path

from cwm.cli.engine.notes import comments, gateway
from cwm.cli.engine.programs import EnginePrograms, Program


def as_shell(engine: EnginePrograms) -> str:
    """A script that starts every program and waits for each until it answers."""
    folders = dict.fromkeys(str(folder) for program in engine.programs for folder in program.all_folders)
    key = _quoted(engine.keyring)
    lines = [
        "set -eu",
        "umask 077",
        f"mkdir -p {shlex.join(folders)}",
        "pids=",
        "trap 'kill $pids 2>/dev/null' EXIT",
        "trap 'exit 130' INT TERM",
        f"test -s {key} || od -An -v -tx1 -w32 -N32 /dev/urandom | tr -d ' ' > {key}",
    ]
    for program in engine.programs:
        lines += ["", f"# {program.name}", *_started(program)]
    lines += ["", f"echo {_quoted(f'The engine is ready. A gateway: {gateway(engine)} cwm serve')}", "wait"]
    return "#!/bin/sh\n" + comments(engine, []) + "\n".join(lines) + "\n"


def _started(program: Program) -> list[str]:
    assigned = [f"{name}={_quoted(value)} \\" for name, value in program.variables.items()]
    command = [*assigned, f"{shlex.join(program.argv)} &", 'pids="$pids $!"']
    if program.warm_up:
        return [*command, f"until {shlex.join(program.warm_up)}; do sleep 5; done"]
    if program.health:
        return [*command, f"until curl -fsS -o /dev/null {program.health_url}; do sleep 1; done"]
    if program.probe:
        return [*command, f"until {shlex.join(program.probe)} > /dev/null; do sleep 1; done"]
    return command


def _quoted(value: str | Path) -> str:
    return shlex.quote(str(value))
