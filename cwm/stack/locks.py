"""Locks between processes, by ``flock``: the kernel releases them when their holder dies, for whatever reason."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from cwm.settings import places
from cwm.stack.errors import StackError

_RETRY_SECONDS = 0.25


class FileLock:
    """A lock on a file that contains the pid of its last holder. Several ``shared`` locks may hold one file together."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._path = path
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock without waiting; False if another process (or object) holds it.

        Raises StackError if the file cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = self._open_locked()
        except OSError as error:
            reason = places.refusal(self._path, error)
            raise StackError(
                f"{self._path} cannot be written ({reason}). Make room and give this user the right to write "
                "there, or set CWM_STORAGE_PATH (what is stored) and CWM_HOME (engine and models) to other folders."
            ) from error
        if descriptor is None:
            return False
        self._descriptor = descriptor
        return True

    def _open_locked(self) -> int | None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, self._kind | fcntl.LOCK_NB)
            if not self._is_at_path(descriptor):
                # The last holder removed the file, so the path may name a new one: lock that.
                os.close(descriptor)
                return self._open_locked()
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def holder(self) -> str:
        """The pid in the file, as text; empty if the file does not exist."""
        return self._path.read_text(encoding="ascii").strip() if self._path.exists() else ""

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@asynccontextmanager
async def locked(path: Path, waiting: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold the lock on ``path``. If another process has it, call ``waiting`` once with that pid, and wait."""
    lock = FileLock(path)
    holder_reported = False
    while not lock.take():
        if not holder_reported:
            waiting(lock.holder())
            holder_reported = True
        await asyncio.sleep(_RETRY_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def storage_lock(storage_path: Path) -> Iterator[None]:
    """Keep other stacks out of a storage folder. Raises StackError where one runs already."""
    lock = FileLock(storage_path / "cwm-up.lock")
    if not lock.take():
        raise StackError(
            f"another cwm up (process {lock.holder()}) is using {storage_path}. Stop it, or set CWM_STORAGE_PATH to another folder."
        )
    try:
        yield
    finally:
        lock.release()
