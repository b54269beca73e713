"""Standard streams: output that tells when it cannot be written, and numbers that stay theirs."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(OSError):
    """Standard output took no more: its disk is full, say. What is written from now on is dropped."""


def check_streams() -> None:
    """From now on a failed write to ``sys.stdout`` raises OutputError; whose reader has enough, BrokenPipeError.

    What its encoding has not is written as an escape, as to ``sys.stderr``. Nothing that is opened later takes the number of a standard stream that is closed.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper):
        return
    raw = _Checked(given.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        # As Python itself does for PYTHONUNBUFFERED.
        raw if given.write_through else io.BufferedWriter(raw),
        encoding=given.encoding,
        errors="backslashreplace" if given.errors == "strict" else given.errors,
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )


class _Checked(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # What is still buffered would be tried, and told, once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise OutputError(f"Standard output cannot be written: {error.strerror}.") from error
