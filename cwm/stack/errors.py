"""What goes wrong while a local engine is prepared, started or kept running."""

from __future__ import annotations


class StackError(Exception):
    """The local engine cannot be had: one readable message that says what is wrong and, where known, the fix."""
