"""One program of the stack, started in its own process session, with its output in a log file."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from cwm.settings import file_writes
from cwm.stack import proc

_POLL_SECONDS = 0.05
_KILLED_SECONDS = 10.0
_LEASH = Path(__file__).with_name("leash.py")
# Variables that only the gateway may see (CWM_*), and variables that would override the engine's flags.
_OURS = "CWM_"
_NEVER_WITHHELD = {
    "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
}  # fmt: skip
_WITHHELD = (
    "VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH",
    "LMCACHE_CONFIG_FILE", "LMCACHE_COORDINATOR_URL", "VLLM_API_KEY", "VLLM_SERVER_DEV_MODE", "VLLM_USE_V1",
)  # fmt: skip


class Child:
    """A started program. It leads a process session with its pid; all processes it starts stay in that session."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid
        self.started = proc.start_time(process.pid)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        withheld: Collection[str] = (),
    ) -> Child:
        """Run ``argv`` in our environment without the ``withheld`` variables and with ``variables`` added.

        Output is appended to ``log``. Variables that every program needs (``PATH``, ``HOME`` ...) are always passed.
        """
        with file_writes.appended(log) as output:
            process = await asyncio.create_subprocess_exec(
                *leashed(argv, variables, withheld),
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                start_new_session=True,
            )
        return cls(process)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ended(self) -> int:
        """Wait for the program to end; its exit status, negative for a signal."""
        return await self._process.wait()

    def pids(self) -> list[int]:
        return proc.session_members(self.pid)

    def kill(self) -> None:
        """SIGKILL to everything in the session."""
        proc.send(self.pids(), signal.SIGKILL)

    async def stop(self, grace_seconds: float) -> bool:
        """Send SIGTERM, and SIGKILL to what still runs after the grace. False if SIGKILL was needed."""
        if self.alive:
            proc.send([self.pid], signal.SIGTERM)
        in_time = await gone(self.pid, grace_seconds)
        await self.wipe()
        return in_time

    async def wipe(self) -> None:
        """Kill the whole session and collect the exit status."""
        self.kill()
        await gone(self.pid, _KILLED_SECONDS)
        if not self.alive or not self.pids():
            await self._process.wait()


def leashed(argv: Sequence[str], variables: Mapping[str, str], withheld: Collection[str] = ()) -> list[str]:
    ours = {name for name in os.environ if name.upper().startswith(_OURS)}
    names = sorted({*_WITHHELD, *ours, *withheld} - _NEVER_WITHHELD)
    unset = [part for name in names for part in ("-u", name)]
    assignments = [f"{name}={value}" for name, value in variables.items()]
    return on_leash(["env", *unset, *assignments, *argv])


def on_leash(argv: Sequence[str | Path], account: pwd.struct_passwd | None = None) -> list[str]:
    """The command line of ``argv`` as a program that gets SIGTERM when this process dies; as root, run by ``account``."""
    account_options = [] if account is None else ["--as", f"{account.pw_uid}:{account.pw_gid}"]
    leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid())]
    return [*leash, *account_options, *map(str, argv)]


async def gone(session: int, seconds: float) -> bool:
    """Wait until ``session`` has no living process; False if it still has one after ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while proc.session_members(session):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
