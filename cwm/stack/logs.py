"""The log file of each part: a new one per run, limited in size, with its errors reported."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from cwm.settings import file_writes
from cwm.stack.tool import readable

_LARGEST_BYTES = 64 * 1024 * 1024
_LAST_BYTES = 64 * 1024
_LONGEST_LINE = 300
_IMPORTANT = re.compile(r"\b(ERROR|CRITICAL|Traceback|OOM)\b")


def fresh_log(folder: Path, name: str) -> Path:
    """An empty ``<name>.log``; the previous run's log becomes ``<name>.log.1``."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    if os.path.lexists(log):
        log.replace(_previous(log))
    file_writes.write_text(log, "", mode=0o644)
    return log


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log, without colours and empty lines."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        return _lines(file.read())[-count:]


class LogWatch:
    """Reads a part's new log lines, returns the errors among them, and keeps the file small."""

    def __init__(self, log: Path, largest_bytes: int = _LARGEST_BYTES) -> None:
        self._log, self._largest = log, largest_bytes
        self._offset = log.stat().st_size

    def errors(self, most: int = 3) -> list[str]:
        """New lines with an error: at most ``most``, then the number of further ones."""
        if self._log.stat().st_size == self._offset:
            return []
        with self._log.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
            self._offset = file.tell()
        if self._offset > self._largest:
            self._turn_over()
        error_lines = [line for line in _lines(text) if _IMPORTANT.search(line)]
        more = [f"… and {len(error_lines) - most} more"] if len(error_lines) > most else []
        return [line[:_LONGEST_LINE] for line in error_lines[:most]] + more

    def _turn_over(self) -> None:
        # The part has the file open for appending, so copy and empty the file instead of moving it.
        _previous(self._log).unlink(missing_ok=True)
        shutil.copyfile(self._log, _previous(self._log))
        os.truncate(self._log, 0)
        self._offset = 0


def _previous(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _lines(text: bytes) -> list[str]:
    return [line for line in map(readable, text.decode("utf-8", errors="replace").splitlines()) if line]
