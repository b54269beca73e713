"""Programs of others, installed once for all test runs of whoever runs them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

_INSTALL_SECONDS: Final = 600


def once(kind: str, pins: Path, install: Callable[[Path], None]) -> Path:
    """The folder that ``install`` filled, kept for as long as ``pins`` says the same; all of it or nothing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cwm-tests"
    folder = cache / f"{kind}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as unfinished:
                begun = Path(unfinished) / folder.name
                begun.mkdir()
                install(begun)
                begun.rename(folder)
    return folder


def from_pypi(pins: Path) -> Path:
    """A folder for PYTHONPATH with what ``pins`` pins; RuntimeError tells why not."""
    return once("pypi", pins, lambda folder: pip("install", "--target", str(folder), "-r", str(pins)))


def pip(*arguments: str) -> None:
    """Run it; RuntimeError has its words where it fails."""
    line = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
