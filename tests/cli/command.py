"""Runs ``cwm`` as a person does: in a process of its own, with nothing of this machine's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def environment(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CWM_")}
    return {
        **kept,
        "CWM_DB_PATH": str(folder / "cwm.db"),
        "CWM_SECRET_FILE": str(folder / "secret"),
        "CWM_VLLM_URL": "http://127.0.0.1:9",
        "CWM_LMCACHE_URL": "http://127.0.0.1:9",
        "CWM_COORDINATOR_URL": "http://127.0.0.1:9",
        "CWM_CLIENT_RETRIES": "0",
        "COLUMNS": "100",
        **variables,
    }


def cwm(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cwm", *arguments],
        cwd=folder,
        env=environment(folder, variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A gateway on a free port: its URL, as it says itself, and its process."""
    # Its log goes to a file: nobody reads a pipe while it serves, and a full one would hold it up.
    with (folder / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cwm", "serve", "--port", "0"],
            cwd=folder,
            env=environment(folder, variables),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                if "CWM is ready: " not in ready:
                    process.wait(timeout=10)
                    raise AssertionError(ready + (folder / "log").read_text())
                yield ready.split()[3].removesuffix("/mcp"), process
            finally:
                process.kill()


def refused(run: subprocess.CompletedProcess[str], code: str, status: int = 1) -> str:
    """The sentence of a coded refusal; fails unless stderr is exactly one line of it."""
    assert run.returncode == status, run.stderr
    lines = run.stderr.strip().splitlines()
    assert len(lines) == 1, run.stderr
    assert lines[0].startswith(f"{code}: ")
    return lines[0]
