"""Reads /proc: when a process started, its session, its mapped files and its listening ports."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
# Field positions in /proc/<pid>/stat after the command's closing parenthesis; the command may contain spaces.
_STATE, _SESSION, _START = 0, 3, 19
_MAPS_INODE = 4
_TCP_LOCAL, _TCP_STATE, _TCP_INODE, _TCP_LISTEN = 1, 3, 9, "0A"
_DEAD = {"Z", "X"}


def boot_id() -> str:
    """An id that changes with every boot: a pid from an earlier boot is not ours."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_time(pid: int) -> int | None:
    """Start of ``pid`` in clock ticks since boot; with the pid it identifies one process. None if it has ended."""
    fields = _stat(pid)
    return None if fields is None or fields[_STATE] in _DEAD else int(fields[_START])


def session_members(leader: int) -> list[int]:
    """Living processes in the session that ``leader`` opened, including the leader."""
    return [pid for pid in every_pid() if _in_session(pid, leader)]


def send(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def mapped_inodes(pid: int, folder: str) -> set[int]:
    """Inodes of the files under ``folder`` that ``pid`` has mapped; empty if this user may not read its maps.

    Inodes instead of names, because a semaphore is mapped under a temporary name and renamed afterwards.
    """
    try:
        maps = (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
    except (OSError, ProcessLookupError):
        return set()
    entries = (line.split(maxsplit=5) for line in maps.splitlines() if folder in line)
    return {int(entry[_MAPS_INODE]) for entry in entries if entry[-1].startswith(folder)}


def listens(pids: Iterable[int], port: int) -> bool:
    """Whether one of these processes listens on TCP ``port``."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    return any(_descriptor(entry) in sockets for pid in pids for entry in _descriptors(pid))


def every_pid() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        path = _PROC / "net" / table
        lines = path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []
        for fields in map(str.split, lines):
            if fields[_TCP_STATE] == _TCP_LISTEN and int(fields[_TCP_LOCAL].rpartition(":")[2], 16) == port:
                yield fields[_TCP_INODE]


def _descriptors(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return []


def _descriptor(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def _in_session(pid: int, leader: int) -> bool:
    fields = _stat(pid)
    return fields is not None and int(fields[_SESSION]) == leader and fields[_STATE] not in _DEAD


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
