"""Standard streams: failed writes raise errors, no other file gets a standard stream's descriptor, and a terminal obeys CWM alone."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from cwm.domain.visible_text import visible

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(OSError):
    """Standard output cannot be written, for example because its disk is full. Further output is dropped."""


def check_streams() -> None:
    """Make failed writes to ``sys.stdout`` raise OutputError, or BrokenPipeError when the reader has closed the pipe.

    Both ``sys.stdout`` and ``sys.stderr`` show text as ``visible`` does; rich, which has colours to write, goes past that.
    Characters that the encoding lacks are written as escapes. Closed standard streams are opened on the null device, so
    that no file opened later gets their descriptors.
    """
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free descriptor
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _visible_stream(sys.stdout, _Checked)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _visible_stream(sys.stderr, io.FileIO)


def as_it_is(stream: TextIO) -> TextIO:
    """The same stream for text that is written without signs."""
    return getattr(stream, "rich_proxied_file", stream)


def _visible_stream(stream: io.TextIOWrapper, kind: type[io.FileIO]) -> _Visible:
    raw = kind(stream.fileno(), "wb", closefd=False)
    return _Visible(
        # As Python itself does for PYTHONUNBUFFERED.
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        # The second is Python's in the C locale.
        errors="backslashreplace" if stream.errors in {"strict", "surrogateescape"} else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Visible(io.TextIOWrapper):
    """Writes a sign for whatever a terminal would obey."""

    def write(self, text: str, /) -> int:
        super().write(visible(text))
        return len(text)

    def write_as_it_is(self, text: str) -> int:
        return super().write(text)

    @property
    def rich_proxied_file(self) -> _AsItIs:
        """Where rich writes, whoever made its console: Typer makes one for its help."""
        return _AsItIs(self)


class _AsItIs:
    """The stream, with a ``write`` that changes nothing."""

    def __init__(self, stream: _Visible) -> None:
        self._stream = stream
        self.write = stream.write_as_it_is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
