"""A unique name for this process, and a check whether another process of this machine has ended."""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
# Field positions in /proc/<pid>/stat after the command, which may contain spaces.
_STATE, _START = 0, 19
_DEAD = {"Z", "X"}


def holder() -> str:
    """``<machine>:<pid>:<start>:<random>``; machine and start are empty if the kernel does not provide them."""
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid()) or ''}:{secrets.token_hex(4)}"


def has_ended(name: str) -> bool | None:
    """Whether the process of a :func:`holder` has ended; None if it is of another machine or container."""
    machine, _, rest = name.partition(":")
    pid, _, rest = rest.partition(":")
    start, _, _ = rest.partition(":")
    if not machine or not start or machine != _machine():
        return None
    return _start_time(int(pid)) != start


@cache
def _machine() -> str:
    """Boot id and pid namespace: within both, a pid and its start time identify one process."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in _DEAD else fields[_START]
