"""What a running stack writes down about itself, so that the next start can clean up after one that was killed."""

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

from cwm.stack import proc, shm
from cwm.stack.child import gone
from cwm.stack.environment import Report
from cwm.stack.models import write_json

_STOP_SECONDS = 15.0


def key_of(folder: Path) -> str:
    """Names what keeps its own in ``folder``: its run file and the lock beside, and a stack's shared memory."""
    return "cwm-" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: int

    @classmethod
    def current(cls) -> Process:
        pid = os.getpid()
        return cls(pid, proc.start_time(pid) or 0)

    def session(self) -> list[int]:
        """Living processes of the session this one opened; empty once the pid belongs to somebody else.

        A dead leader's pid is not given away while its session lives, so members without a leader are ours.
        """
        now = proc.start_time(self.pid)
        return proc.session_members(self.pid) if now in {None, self.started} else []


class RunFile:
    """``<run>/<stack>.json``: ports, processes and shared memory of one stack, or of what is run in a temporary folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._document: dict[str, Any] = {}
        self._written = False

    def begin(self, facts: dict[str, Any], temporary: Path | None = None) -> None:
        """Write down the stack of this process; ``temporary`` is a folder that is not to outlive it."""
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
        seen = {segment.name: segment.inode for segment in sorted(segments, key=lambda found: found.name)}
        if seen != self._document["shared_memory"] or not self._written:
            self._document["shared_memory"] = seen
            self._write_if_possible()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        self._written = False
        write_json(self._path, self._document)
        self._written = True

    def _write_if_possible(self) -> None:
        """A full disk must not end what is running; it is written with the next look."""
        with suppress(OSError):
            self._write()

    def owner_lives(self) -> bool:
        """Whether the process that wrote it is there; False where none did."""
        owner = (self._read() or {}).get("owner") or {}
        started = proc.start_time(owner.get("pid", 0))
        return started is not None and started == owner.get("started")

    @property
    def has_temporary(self) -> bool:
        """Whether it names a folder that is not to outlive the stack."""
        return bool((self._read() or {}).get("temporary"))

    def temporary(self) -> Path | None:
        """The folder that was not to outlive the stack, while it is there and is that one and this user's."""
        noted = (self._read() or {}).get("temporary")
        if not noted:
            return None
        folder = Path(noted["folder"])
        try:
            found = folder.lstat()
        except FileNotFoundError:
            return None
        ours = stat.S_ISDIR(found.st_mode) and (found.st_ino, found.st_uid) == (noted["inode"], os.getuid())
        return folder if ours else None

    async def clear_leftovers(self, report: Report) -> None:
        """Stop what an earlier stack left running, remove its shared memory, and forget it.

        Only to be called by the holder of the storage's or the stack's lock: then whoever wrote the file is dead.
        """
        await self.stop_leftovers(report)
        self.remove()

    async def stop_leftovers(self, report: Report) -> None:
        """The same, but for the file itself: what else is to be removed with it is not forgotten if that fails."""
        document = self._read()
        if document is None:
            return
        if document.get("boot") == proc.boot_id():
            # They are in the order in which they were started, and need each other.
            for part, process in reversed(document.get("parts", {}).items()):
                await _stop(part, Process(process["pid"], process["started"]), report)
            left = [shm.Segment(name, inode) for name, inode in document.get("shared_memory", {}).items()]
            await asyncio.to_thread(shm.unlink, left)

    def _read(self) -> dict[str, Any] | None:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None


async def _stop(part: str, process: Process, report: Report) -> None:
    if not process.session():
        return
    report(f"stopping {part} (process {process.pid}), left behind by a run that was killed")
    proc.send(process.session(), signal.SIGTERM)
    if not await gone(process.pid, _STOP_SECONDS):
        proc.send(process.session(), signal.SIGKILL)
        await gone(process.pid, _STOP_SECONDS)
