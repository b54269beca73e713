"""Standard streams: failed writes raise errors, and no other file gets a standard stream's descriptor."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(OSError):
    """Standard output cannot be written, for example because its disk is full. Further output is dropped."""


def check_streams() -> None:
    """Make failed writes to ``sys.stdout`` raise OutputError, or BrokenPipeError when the reader has closed the pipe.

    Characters that the encoding lacks are written as escapes, as on ``sys.stderr``. Closed standard streams are
    opened on the null device, so that no file opened later gets their descriptors.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free descriptor
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    raw = _Checked(stream.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        # As Python itself does for PYTHONUNBUFFERED.
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Checked(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # Otherwise the remaining buffer would be written, and fail, again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise OutputError(f"Standard output cannot be written: {error.strerror}.") from error
