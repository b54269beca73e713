"""Become another program that is told to end when its parent dies: ``leash.py PARENT_PID [--as UID:GID] PROGRAM [ARGUMENTS]``.

A ``cwm up`` that is killed cannot stop its engine; the kernel then sends each part the SIGTERM that makes
it end in order. A program of its own, run before the real one, because code between fork and exec is not
safe in a process with threads. Standard library only: it runs without site-packages.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_AS = "--as"


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if program[0] == _AS:  # first: with a change of user the kernel forgets what it was asked
        user, group = map(int, program[1].split(":"))
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        program = program[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked to tell
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
