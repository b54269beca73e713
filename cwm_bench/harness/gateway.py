"""``cwm serve`` in a process of its own, with its start and its memory measured."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2

from cwm.stack.child import on_leash
from cwm_bench.harness.servers import free_port

_START_SECONDS = 60.0
# Every thaw loads, and no background work does: only the benchmark changes what LMCache holds and counts.
QUIET = {"CWM_WATCHDOG_SECONDS": "0", "CWM_PATROL_WINDOWS": "0", "CWM_THAW_PLAN": "load"}


@dataclass(frozen=True, slots=True)
class Gateway:
    """``start_seconds``: from exec to the first answer of /healthz."""

    url: str
    pid: int
    start_seconds: float

    def rss_mb(self) -> float:
        """Resident memory in MB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


class Stack(Protocol):
    """The URLs of a running engine, and its weights."""

    vllm_url: str
    lmcache_url: str
    coordinator_url: str
    weights_digest: str


def engine_variables(stack: Stack, folder: Path) -> dict[str, str]:
    """``CWM_*`` variables of a gateway in front of this engine, with its own registry in ``folder``."""
    return {
        "CWM_VLLM_URL": stack.vllm_url,
        "CWM_LMCACHE_URL": stack.lmcache_url,
        "CWM_COORDINATOR_URL": stack.coordinator_url,
        "CWM_WEIGHTS_DIGEST": stack.weights_digest,
        "CWM_DB_PATH": str(folder / "cwm.db"),
        "CWM_SECRET_FILE": str(folder / "secret"),
    }


@asynccontextmanager
async def gateway(variables: Mapping[str, str], log: Path) -> AsyncIterator[Gateway]:
    """Run ``cwm serve`` with these ``CWM_*`` variables, on a free port, until the block ends."""
    port = free_port()
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CWM_")}
    environ |= {"CWM_PORT": str(port), "CWM_LOG_LEVEL": "WARNING", **variables}
    started = time.monotonic()
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *on_leash([sys.executable, "-m", "cwm", "serve"]), env=environ, stdout=output, stderr=output
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await answering(f"{url}/healthz", process, log)
        yield Gateway(url, process.pid, round(time.monotonic() - started, 2))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def answering(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    """Return when a new server answers at ``url``. Raises RuntimeError with its ``log`` when it ends before."""
    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.timeout(_START_SECONDS):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"a server ended at once:\n{_tail(log)}")
            try:
                await http.get(url)
            except httpx2.TransportError:
                await asyncio.sleep(0.01)
            else:
                return


def _tail(log: Path) -> str:
    return log.read_text()[-2000:]
