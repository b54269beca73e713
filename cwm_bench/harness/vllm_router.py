"""vllm-router, a third-party program from PyPI, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cwm.stack.errors import StackError
from cwm_bench.harness.servers import answering, free_port, running

PACKAGE: Final = "vllm-router==0.1.17"
POLICY: Final = "consistent_hash"
"""The one of its policies that keeps a session at its engine by the header ``x-session-id``."""

_INSTALL_SECONDS: Final = 300
_LONGEST_REASON: Final = 200


def installed(folder: Path) -> Path:
    """Install it in ``folder``; the path of its program. Raises StackError with a short reason."""
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE])
    return folder / "bin" / "vllm-router"


def _run(line: Sequence[str]) -> None:
    try:
        process = subprocess.run(  # noqa: S603 - this Python and its pip, with what is pinned here
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StackError(f"{PACKAGE} was not installed in {_INSTALL_SECONDS} s.") from None
    if process.returncode != 0:
        reason = " ".join((process.stderr or process.stdout).split())[-_LONGEST_REASON:]
        raise StackError(f"{PACKAGE} could not be installed: {reason}")


@asynccontextmanager
async def vllm_router(program: Path, engines: Sequence[str], log: Path) -> AsyncIterator[str]:
    """Its URL, in front of engines at these URLs, with its defaults but for the policy. Raises RuntimeError with its log."""
    port = free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--policy", POLICY]
    arguments += ["--prometheus-port", str(free_port()), "--worker-urls", *engines]
    async with running(arguments, {}, log, program=str(program)) as process:
        url = f"http://127.0.0.1:{port}"
        await answering(f"{url}/health", process, log)
        yield url
