"""Cleans up after killed programs of this user that do not run again: demos, benchmarks and their servers."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cwm.stack import shm
from cwm.stack.environment import Report
from cwm.stack.errors import StackError
from cwm.stack.locks import FileLock
from cwm.stack.runfile import RunFile, key_of

_KEY = f"cwm-{'?' * 12}"
_SOCKET_PATH_BYTES: Final = 107  # Linux's limit
_SOCKET_IN_TEMPORARY: Final = (
    "/cwm-12345678/12345678-1234-1234-1234-123456789abc"  # a name as mkdtemp and vLLM make it
)


def lmcache_arguments(folder: Path, key: str, part: str = "lmcache") -> Path:
    """The file with the arguments of an LMCache server, including the password of its Redis."""
    return folder / f"{key}.{part}.json"


def life_lock(home: Path, key: str) -> Path:
    """The lock file that a stack holds while it lives."""
    return home / "run" / f"{key}.lock"


async def clear_abandoned(home: Path, report: Report) -> None:
    """Stop the processes of dead stacks and remove their shared memory (with LMCache's pool) and temporary folders.

    Leaves alone what belongs to a living stack or another user, and memory that a living process has mapped.
    """
    files = (home / "run").glob(f"{_KEY}.*")
    run_files = {path.with_name(f"{path.name.partition('.')[0]}.json") for path in files}
    # Stacks with a temporary folder come last: another stack's parts may still write there.
    for path in sorted(run_files, key=lambda path: (RunFile(path).has_temporary, path)):
        try:
            await _clear(path, life_lock(home, path.stem), report)
        except (OSError, StackError) as error:
            report(f"what {path.stem} left behind cannot be cleaned up: {error}")


@contextmanager
def socket_folder(home: Path) -> Iterator[Path]:
    """A temporary folder for vLLM's sockets, in ``/tmp`` where their paths would be too long elsewhere.

    Raises StackError as :func:`temporary_folder` does.
    """
    longest = os.fsencode(tempfile.gettempdir() + _SOCKET_IN_TEMPORARY)
    parent = None if len(longest) <= _SOCKET_PATH_BYTES else "/tmp"  # noqa: S108 - made by mkdtemp there
    with temporary_folder(home, "cwm-", parent) as (folder, _):
        yield folder


@contextmanager
def temporary_folder(home: Path, prefix: str, parent: str | None = None) -> Iterator[tuple[Path, RunFile]]:
    """A folder that is removed after the block, or by :func:`clear_abandoned` if this process is killed.

    ``clear_abandoned`` first stops the programs that the folder's run file lists. Raises StackError if there
    is no space for the folder, or ``home`` cannot be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise StackError(
            f"no temporary folder can be made ({error}). Make room, or set TMPDIR to another folder."
        ) from error
    key = key_of(folder)
    lock, run = FileLock(life_lock(home, key)), RunFile(home / "run" / f"{key}.json")
    try:
        lock.take()
        run.begin({}, folder)
        yield folder, run
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            with suppress(OSError):  # raise the block's own error instead
                run.remove()
                life_lock(home, key).unlink(missing_ok=True)
        lock.release()


async def _clear(path: Path, life: Path, report: Report) -> None:
    lock, run = FileLock(life), RunFile(path)
    if not lock.take():
        return
    try:
        if not run.owner_lives():
            await run.stop_leftovers(report)
            await asyncio.to_thread(_forget, path, life, run)
    finally:
        lock.release()


def _forget(path: Path, life: Path, run: RunFile) -> None:
    shm.unlink_idle_lmcache_pools(path.stem)
    for arguments in path.parent.glob(lmcache_arguments(Path(), path.stem, "lmcache*").name):
        arguments.unlink(missing_ok=True)
    temporary = run.temporary()
    if temporary is not None:
        shutil.rmtree(temporary)
    run.remove()
    life.unlink(missing_ok=True)
