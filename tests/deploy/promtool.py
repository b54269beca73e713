"""Prometheus' own checker: from PATH, else the distribution's package unpacked into a folder, without installing it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PACKAGE: Final = "prometheus"
_PATIENCE_SECONDS: Final = 240


@dataclass(frozen=True, slots=True)
class Promtool:
    program: Path

    def __call__(self, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )


def found(folder: Path) -> Promtool:
    """CWM_TEST_PROMTOOL names another one. A machine that has none and no apt fails the test."""
    known = os.environ.get("CWM_TEST_PROMTOOL") or shutil.which("promtool")
    if known:
        return Promtool(Path(known))
    unpacked = folder / "unpacked"
    if not unpacked.exists():
        _unpack(folder, unpacked)
    return Promtool(unpacked / "usr" / "bin" / "promtool")


def _unpack(folder: Path, into: Path) -> None:
    """Lists and packages go to the folder; the machine's own are only read."""
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    # Only for where this runs as root, whose folders apt's own user cannot write to.
    options = [
        "-qq",
        "-o",
        f"Dir::State::Lists={folder}/lists",
        "-o",
        f"Dir::Cache::Archives={folder}/archives",
    ]
    options += ["-o", f"Dir::Cache={folder}", "-o", "APT::Sandbox::User=root"]
    _run(["apt-get", *options, "update"], folder)
    _run(["apt-get", *options, "download", _PACKAGE], folder)
    (package,) = folder.glob(f"{_PACKAGE}_*.deb")
    _run(["dpkg-deb", "-x", str(package), str(into)], folder)


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-500:]}")
