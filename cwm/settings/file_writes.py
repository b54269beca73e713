"""Reads and writes files in folders that others may have made, such as a cloned repository: never through a link in one.

A new content is written under a name that nobody knows, and takes the file's place in one step.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# A pipe that somebody put there must not hold the reader up.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK


class LinkError(OSError):
    """A link stands where a file or a folder should be. ``filename`` is its path."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ELOOP, "is a link, which CWM does not follow there", str(path))


def read_text(path: Path, folder: Path) -> str:
    """The UTF-8 text of a file in ``folder`` or below it. LinkError for a link on the way from there; UnicodeDecodeError, OSError."""
    with _parent(path, folder) as descriptor:
        file = _opened(path, _READ, descriptor)
    with os.fdopen(file, encoding="utf-8") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        return stream.read()


def write_text(path: Path, text: str, folder: Path | None = None, mode: int = 0o666) -> None:
    """Give a file in ``folder`` or below it this UTF-8 text, whole or not at all; missing folders are made.

    ``folder`` is the file's own by default. A file that is there keeps its permissions, a new one has ``mode``, less the
    process's mask. LinkError for a link on the way from ``folder``, OSError.
    """
    with _parent(path, folder or path.parent, make=True) as parent:
        permissions = _permissions(path, parent)
        fresh = f".cwm-{secrets.token_hex(8)}"
        descriptor = _opened(path.with_name(fresh), _NEW, parent, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                if permissions is not None:
                    os.fchmod(descriptor, permissions)
                stream.write(text)
                stream.flush()
                os.fsync(descriptor)
            os.replace(fresh, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=parent)
            raise


def appended(path: Path) -> BinaryIO:
    """The file, open for appending; a new one has mode 0644, less the mask. LinkError where the path is a link, OSError."""
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, None, 0o644), "ab")


def _permissions(path: Path, parent: int) -> int | None:
    """Those of the file that is there; None if there is none."""
    try:
        state = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(state.st_mode):
        raise LinkError(path)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return stat.S_IMODE(state.st_mode) & 0o777


@contextmanager
def _parent(path: Path, folder: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that a file is in: each step from ``folder`` to it is one that no link takes elsewhere."""
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    at, descriptor = folder, os.open(folder, _FOLDER | os.O_CLOEXEC)
    try:
        for name in path.relative_to(folder).parts[:-1]:
            at /= name
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            inner = _opened(at, _FOLDER, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path, flags: int, parent: int | None, mode: int = 0o666) -> int:
    name = str(path) if parent is None else path.name
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent)
    except OSError as error:
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise LinkError(path) from error
        error.filename = str(path)
        raise
