"""Clears up after stacks of this user that were killed together with their parts and are not started again: demos'."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from cwm.stack import shm
from cwm.stack.environment import Report
from cwm.stack.errors import StackError
from cwm.stack.locks import FileLock
from cwm.stack.runfile import RunFile


def lmcache_arguments(folder: Path, key: str) -> Path:
    """What LMCache is started with, the password of its Redis included."""
    return folder / f"{key}.lmcache.json"


def life_lock(home: Path, key: str) -> Path:
    """What a stack has locked for as long as it lives."""
    return home / "run" / f"{key}.lock"


async def clear_abandoned(home: Path, report: Report) -> None:
    """Stop what dead stacks left running, and remove their shared memory, LMCache's pool included, and temporary folders.

    Nothing of a stack that lives, or that a living process has mapped, is touched; what is another user's stays.
    """
    for path in sorted((home / "run").glob(f"cwm-{'?' * 12}.json")):
        try:
            await _clear(path, life_lock(home, path.stem), report)
        except (OSError, StackError) as why:
            report(f"what {path.stem} left behind is not cleared: {why}")


async def _clear(path: Path, life: Path, report: Report) -> None:
    lock, run = FileLock(life), RunFile(path)
    if not lock.take():
        return
    try:
        if not run.owner_lives():
            temporary = run.temporary()
            await run.clear_leftovers(report)
            await asyncio.to_thread(_forget, path, life, temporary)
    finally:
        lock.release()


def _forget(path: Path, life: Path, temporary: Path | None) -> None:
    shm.unlink_idle_lmcache_pool(path.stem)
    lmcache_arguments(path.parent, path.stem).unlink(missing_ok=True)
    life.unlink(missing_ok=True)
    if temporary is not None:
        shutil.rmtree(temporary)
