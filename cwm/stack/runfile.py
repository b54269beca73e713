"""A running stack's record of its processes and shared memory: the next start cleans up after a stack that was killed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwm.settings import file_writes
from cwm.stack import proc, shm
from cwm.stack.child import gone
from cwm.stack.environment import Report

_STOP_SECONDS = 15.0


def key_of(folder: Path) -> str:
    """The key of the stack that owns ``folder``; it names the run file, its lock and the shared memory."""
    return "cwm-" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Process:
    """A process; its start time distinguishes it from a later one with the same pid."""

    pid: int
    started: int

    @classmethod
    def current(cls) -> Process:
        pid = os.getpid()
        return cls(pid, proc.start_time(pid) or 0)

    def session(self) -> list[int]:
        """Living processes of the session that this process opened; empty once another process has its pid.

        The kernel does not reuse a dead leader's pid while its session lives, so members without a leader are ours.
        """
        start = proc.start_time(self.pid)
        return proc.session_members(self.pid) if start in {None, self.started} else []


class RunFile:
    """``<run>/<stack>.json``: ports, processes and shared memory of one stack, or of programs in a temporary folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._document: dict[str, Any] = {}
        self._saved = False

    def begin(self, facts: dict[str, Any], temporary: Path | None = None) -> None:
        """Record the stack of this process; ``temporary`` is a folder to remove when the stack ends."""
        owner = Process.current()
        self._document = {
            **facts,
            "boot": proc.boot_id(),
            "owner": {"pid": owner.pid, "started": owner.started},
            "parts": {},
            "shared_memory": {},
            "temporary": temporary and {"folder": str(temporary), "inode": temporary.lstat().st_ino},
        }
        self._write()

    def part_started(self, part: str, pid: int, started: int | None) -> None:
        self._document["parts"][part] = {"pid": pid, "started": started or 0}
        self._write_if_possible()

    def segments_seen(self, segments: Iterable[shm.Segment]) -> None:
        inodes = {
            segment.name: segment.inode for segment in sorted(segments, key=lambda segment: segment.name)
        }
        if inodes != self._document["shared_memory"] or not self._saved:
            self._document["shared_memory"] = inodes
            self._write_if_possible()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        self._saved = False
        _write_json(self._path, self._document)
        self._saved = True

    def _write_if_possible(self) -> None:
        """Write, or leave it to the next update: a full disk must not end a running stack."""
        with suppress(OSError):
            self._write()

    def owner_lives(self) -> bool:
        """Whether the process that wrote the file is alive; False if there is no file."""
        owner = self._read().get("owner") or {}
        started = proc.start_time(owner.get("pid", 0))
        return started is not None and started == owner.get("started")

    @property
    def has_temporary(self) -> bool:
        """Whether the file names a folder to remove with the stack."""
        return bool(self._read().get("temporary"))

    def temporary(self) -> Path | None:
        """The folder to remove with the stack, if it still exists, is the same one (by inode) and belongs to this user."""
        entry = self._read().get("temporary")
        if not entry:
            return None
        folder = Path(entry["folder"])
        try:
            status = folder.lstat()
        except FileNotFoundError:
            return None
        ours = stat.S_ISDIR(status.st_mode) and (status.st_ino, status.st_uid) == (
            entry["inode"],
            os.getuid(),
        )
        return folder if ours else None

    async def clear_leftovers(self, report: Report) -> None:
        """Stop the processes of an earlier stack, remove its shared memory, and remove this file.

        The caller must hold the storage's or the stack's lock: then the process that wrote the file is dead.
        """
        await self.stop_leftovers(report)
        self.remove()

    async def stop_leftovers(self, report: Report) -> None:
        """The same, but keep the file: the caller removes it after everything else that it names is removed."""
        document = self._read()
        if document.get("boot") == proc.boot_id():
            # Listed in start order; each part needs those before it, so stop the last one first.
            for part, process in reversed(document.get("parts", {}).items()):
                await _stop(part, Process(process["pid"], process["started"]), report)
            segments = [shm.Segment(name, inode) for name, inode in document.get("shared_memory", {}).items()]
            await asyncio.to_thread(shm.unlink, segments)

    def _read(self) -> dict[str, Any]:
        """The file's content; empty without a readable file."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}


async def _stop(part: str, process: Process, report: Report) -> None:
    if not process.session():
        return
    report(f"stopping {part} (process {process.pid}), left behind by a run that was killed")
    proc.send(process.session(), signal.SIGTERM)
    if not await gone(process.pid, _STOP_SECONDS):
        proc.send(process.session(), signal.SIGKILL)
        await gone(process.pid, _STOP_SECONDS)


def _write_json(path: Path, document: Any) -> None:
    """Replace ``path`` in one step, so that a reader never sees half of it."""
    file_writes.write_text(path, json.dumps(document, indent=1))
