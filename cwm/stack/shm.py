"""Finds and removes the shared memory that a killed vLLM leaves in /dev/shm, and only that."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cwm.stack import proc

FOLDER = Path("/dev/shm")  # noqa: S108 - where the kernel keeps shared memory
_LMCACHE_PREFIX = "lmcache_l1_pool_"
_BLOCK_BYTES = 512  # unit of st_blocks on every file system


@dataclass(frozen=True, slots=True)
class Segment:
    """A file in /dev/shm. The inode distinguishes it from a later file with the same name."""

    name: str
    inode: int

    @property
    def path(self) -> Path:
        return FOLDER / self.name


def mapped_by(pids: Iterable[int]) -> set[Segment]:
    """Segments that these processes have mapped now, except LMCache's pool, which outlives vLLM on purpose."""
    inodes = set().union(*(proc.mapped_inodes(pid, f"{FOLDER}/") for pid in pids))
    segments = (
        _segment(entry.name) for entry in FOLDER.iterdir() if not entry.name.startswith(_LMCACHE_PREFIX)
    )
    return {segment for segment in segments if segment is not None and segment.inode in inodes}


def unlink(segments: Iterable[Segment]) -> set[Segment]:
    """Remove the segments that no living process has mapped; return those that stay because one has."""
    present = {segment for segment in segments if _segment(segment.name) == segment}
    if not present:
        return set()
    in_use = present & mapped_by(proc.every_pid())
    for segment in present - in_use:
        segment.path.unlink(missing_ok=True)
    return in_use


def lmcache_pool_bytes(key: str) -> int:
    """Bytes of /dev/shm that the pools of a stack's LMCache servers take; their ``--shm-name`` begins with its key."""
    size = 0
    for pool in _pools(key):
        with suppress(OSError):
            size += pool.stat().st_blocks * _BLOCK_BYTES
    return size


def unlink_lmcache_pools(key: str) -> None:
    """Remove the pools of a stack whose LMCache servers have ended."""
    for pool in _pools(key):
        pool.unlink(missing_ok=True)


def unlink_idle_lmcache_pools(key: str) -> None:
    """The same, but those that a living process has mapped."""
    pools = [segment for pool in _pools(key) if (segment := _segment(pool.name)) is not None]
    for pool in pools:
        if not any(pool.inode in proc.mapped_inodes(pid, f"{FOLDER}/") for pid in proc.every_pid()):
            pool.path.unlink(missing_ok=True)


def _pools(key: str) -> list[Path]:
    return [*FOLDER.glob(f"{_LMCACHE_PREFIX}{key}*")]


def _segment(name: str) -> Segment | None:
    try:
        return Segment(name, (FOLDER / name).stat().st_ino)
    except OSError:
        return None
