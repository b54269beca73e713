"""Runs a program that gets SIGTERM when its parent dies: ``leash.py PARENT_PID [--as UID:GID] PROGRAM [ARGUMENTS]``.

A ``cwm up`` that is killed cannot stop its engine; the kernel then sends each part SIGTERM, and the part ends in
order. This is a separate program, executed before the real one, because code between fork and exec is not
safe in a process with threads. It uses only the standard library, because it runs without site-packages.
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
    if program[0] == _AS:  # before prctl: a change of user clears the death signal
        user, group = map(int, program[1].split(":"))
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        program = program[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before prctl
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
