"""``cwm serve`` in a process of its own, with its start and its memory measured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cwm_bench.harness.servers import answering, free_port, rss_bytes, running

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
        return round(rss_bytes(self.pid) / 1e6, 1)


class Stack(Protocol):
    """The URLs of a running engine, and its weights."""

    vllm_url: str
    lmcache_url: str
    coordinator_url: str


def engine_variables(stack: Stack, folder: Path) -> dict[str, str]:
    """``CWM_*`` variables of a gateway in front of this engine, with its own registry in ``folder``."""
    return {
        "CWM_VLLM_URL": stack.vllm_url,
        "CWM_LMCACHE_URL": stack.lmcache_url,
        "CWM_COORDINATOR_URL": stack.coordinator_url,
        "CWM_DB_PATH": str(folder / "cwm.db"),
        "CWM_SECRET_FILE": str(folder / "secret"),
    }


@asynccontextmanager
async def gateway(variables: Mapping[str, str], log: Path) -> AsyncIterator[Gateway]:
    """Run ``cwm serve`` with these ``CWM_*`` variables, on a free port, until the block ends."""
    port = free_port()
    variables = {"CWM_PORT": str(port), "CWM_LOG_LEVEL": "WARNING", **variables}
    started = time.monotonic()
    async with running(["-m", "cwm", "serve"], variables, log) as process:
        url = f"http://127.0.0.1:{port}"
        await answering(f"{url}/healthz", process, log)
        yield Gateway(url, process.pid, round(time.monotonic() - started, 2))
