"""The protocol's reference servers, third-party programs from npm."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cwm.stack.errors import StackError

PACKAGES: Final[Mapping[str, str]] = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
}

_QUIET: Final = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
_INSTALL_SECONDS: Final = 300
_LONGEST_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class ReferenceServers:
    """Command lines of the reference servers; ``folder`` holds ``node_modules``."""

    folder: Path

    def filesystem(self, root: Path) -> tuple[str, ...]:
        return self._line("mcp-server-filesystem", str(root))

    def everything(self) -> tuple[str, ...]:
        return self._line("mcp-server-everything", "stdio")

    def _line(self, program: str, *arguments: str) -> tuple[str, ...]:
        return ("node", str(self.folder / "node_modules" / ".bin" / program), *arguments)


def installed(folder: Path) -> ReferenceServers:
    """Install them in ``folder``. Raises StackError with a short reason."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise StackError("npm is not there.")
    folder.mkdir(parents=True, exist_ok=True)
    packages = [f"{package}@{version}" for package, version in PACKAGES.items()]
    try:
        install = subprocess.run(  # noqa: S603 - npm, with what is pinned here
            [npm, "install", *_QUIET, "--prefix", str(folder), *packages],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StackError(f"npm did not install them in {_INSTALL_SECONDS} s.") from None
    if install.returncode != 0:
        reason = " ".join(install.stderr.split())[:_LONGEST_REASON]
        raise StackError(f"npm could not install them: {reason}")
    return ReferenceServers(folder)


def environment() -> dict[str, str]:
    """Their environment variables."""
    return {"PATH": os.environ.get("PATH", "")}
