"""Gateways in front of the real engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.engine import LiveEngine


@dataclass(frozen=True, slots=True)
class LiveGateway:
    """``cwm serve`` in a process of its own."""

    url: str
    tenant: str
    model: str
    db_path: Path
    pid: int


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway") / "cwm.db"


@pytest.fixture(scope="session")
def gateway(live_engine: LiveEngine, database: Path) -> Iterator[LiveGateway]:
    with served(live_engine, database, "acme") as running:
        yield running


@pytest.fixture(scope="session")
def other_tenant(live_engine: LiveEngine, gateway: LiveGateway) -> Iterator[LiveGateway]:
    """Another tenant on the same registry and the same engine."""
    with served(live_engine, gateway.db_path, "rivals") as running:
        yield running


@contextmanager
def served(engine: LiveEngine, database: Path, tenant: str, **more: str) -> Iterator[LiveGateway]:
    """A gateway for as long as the block lasts; ``more`` are further ``CWM_*`` variables."""
    port = int(more.get("CWM_PORT", 0)) or _free_port()
    variables = {
        "CWM_PORT": str(port),
        "CWM_TENANT": tenant,
        "CWM_DB_PATH": str(database),
        "CWM_SECRET_FILE": str(database.parent / "secret"),
        "CWM_VLLM_URL": engine.vllm_url,
        "CWM_LMCACHE_URL": engine.lmcache_url,
        "CWM_COORDINATOR_URL": engine.coordinator_url,
        # On a model this small computing may be faster, and most tests are about what is loaded.
        "CWM_THAW_PLAN": "load",
        # Tests lose chunks on purpose; a watchdog would have them stored again in between.
        "CWM_WATCHDOG_SECONDS": "0",
        **more,
    }
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CWM_")} | variables
    process = subprocess.Popen(
        [sys.executable, "-m", "cwm", "serve"], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert "ready" in ready, ready + process.stdout.read()
        yield LiveGateway(f"http://127.0.0.1:{port}", tenant, engine.model_name, database, process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
