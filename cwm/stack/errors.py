"""The error of preparing, starting or running a local engine."""

from __future__ import annotations


class StackError(Exception):
    """The local engine cannot run. The message says what is wrong and, where known, how to fix it."""
