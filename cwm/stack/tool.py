"""Runs a program to its end and reads its output line by line: pip, and the scripts that create models."""

from __future__ import annotations

import asyncio
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from cwm.settings import file_writes
from cwm.stack import proc
from cwm.stack.child import gone, leashed

_LAST_LINES = 40
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HOW_PIP_FETCHES = re.compile(
    r"PIP_.+|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE", re.IGNORECASE
)


class ToolFailedError(Exception):
    """A program ended with a status other than 0; ``lines`` are its last output lines."""

    def __init__(self, status: int, lines: Sequence[str]) -> None:
        super().__init__(f"it ended with status {status}")
        self.lines = list(lines)

    def matching(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.search(pattern, line)]


async def run_tool(
    argv: Sequence[str],
    log: Path,
    on_line: Callable[[str], None] = lambda _line: None,
    variables: dict[str, str] | None = None,
    withheld: Collection[str] = (),
) -> None:
    """Run ``argv``; every line goes to ``log`` and to ``on_line``. Raises ToolFailedError.

    The program does not get the ``withheld`` environment variables, except those with which pip reaches its index.
    If the caller is cancelled, the program and everything it started are killed.
    """
    process = await asyncio.create_subprocess_exec(
        *leashed(argv, variables or {}, [name for name in withheld if not _HOW_PIP_FETCHES.fullmatch(name)]),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
        limit=1 << 20,
    )
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        assert process.stdout is not None
        with file_writes.appended(log) as output:
            async for raw in process.stdout:
                line = readable(raw.decode("utf-8", errors="replace"))
                output.write(f"{line}\n".encode())
                last_lines.append(line)
                on_line(line)
        status = await process.wait()
    finally:
        proc.send(proc.session_members(process.pid), signal.SIGKILL)
        await gone(process.pid, 5.0)
    if status != 0:
        raise ToolFailedError(status, last_lines)


def readable(line: str) -> str:
    """A log line without colours; of a progress bar, only the last state."""
    return _CONTROL.sub("", line).rstrip().rpartition("\r")[2]
