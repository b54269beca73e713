"""Programs that a benchmark starts: ``cwm serve`` without an engine, an upstream, a Valkey."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from cwm.stack.child import Child, on_leash
from cwm.stack.commands import valkey_binary
from cwm.stack.errors import StackError
from cwm.stack.health import redis_answers
from cwm.stack.ports import LOOPBACK
from cwm.stack.redis_url import RedisAddress

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_KILL_AFTER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
_NOWHERE: Final = "http://127.0.0.1:9"
_URL: Final = re.compile(rb"http://[^/\s]+/mcp")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; ``url`` is its MCP endpoint."""

    url: str
    pid: int

    def rss_mb(self) -> float:
        return rss_bytes(self.pid) / 2**20


@asynccontextmanager
async def library(folder: Path) -> AsyncIterator[Server]:
    """Run ``cwm_bench.harness.library`` with the files of ``folder``."""
    async with _printing_url(["-m", "cwm_bench.harness.library", str(folder)], folder.parent, {}) as server:
        yield server


@asynccontextmanager
async def gateway(
    folder: Path, document: Mapping[str, Any], store_url: str | None, database_url: str | None = None
) -> AsyncIterator[Server]:
    """A gateway without an engine; ``document`` becomes its ``cwm.yaml``, in ``folder``.

    Its registry is ``cwm.db`` in ``folder``, or the database at ``database_url``.
    """
    configure(folder, document)
    variables = {
        "CWM_CONFIG": str(folder / "cwm.yaml"),
        "CWM_DB_PATH": str(folder / "cwm.db"),
        "CWM_SECRET_FILE": str(folder / "secret"),
        "CWM_VLLM_URL": _NOWHERE,
        "CWM_LMCACHE_URL": "none",
        "CWM_COORDINATOR_URL": "none",
        **({} if store_url is None else {"CWM_SHARED_STORE_URL": store_url}),
        **({} if database_url is None else {"CWM_DATABASE_URL": database_url}),
    }
    async with _printing_url(["-m", "cwm", "serve", "--port", "0"], folder, variables) as server:
        yield server


def configure(folder: Path, document: Mapping[str, Any]) -> None:
    """Replace ``cwm.yaml`` atomically."""
    beside = folder / "cwm.yaml.new"
    beside.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
    beside.replace(folder / "cwm.yaml")


@asynccontextmanager
async def valkey(folder: Path) -> AsyncIterator[str]:
    """Yield the URL of a new Valkey without persistence; its log is in ``folder``. Raises StackError when none is installed."""
    port = free_port()
    argv = [str(valkey_binary()), "--bind", LOOPBACK, "--port", str(port), "--dir", str(folder), "--save", ""]
    server = await Child.start(argv, {}, folder / "valkey.log")
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not await redis_answers(RedisAddress(LOOPBACK, port)):
                if not server.alive:
                    raise StackError("the embedded Valkey does not start.")
                await asyncio.sleep(_POLL_SECONDS)
        yield f"redis://{LOOPBACK}:{port}"
    finally:
        await server.stop(_STOP_SECONDS)


async def json_output(module: str, *arguments: str) -> dict[str, Any]:
    """Run a Python module to its end; return the JSON of its last line."""
    process = await asyncio.create_subprocess_exec(
        *on_leash([sys.executable, "-m", module, *arguments]),
        env=_environment({}),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    finally:
        await _stop(process)
    if process.returncode:
        raise RuntimeError(f"{module} ended with {process.returncode}.")
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


@asynccontextmanager
async def _printing_url(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> AsyncIterator[Server]:
    """Run a Python program that prints its URL on its first line."""
    log = folder / "servers.log"
    async with running(arguments, variables, log, folder=folder, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            url = _URL.search(await process.stdout.readline())
        if url is None:
            raise RuntimeError(f"a server did not start:\n{_tail(log)}")
        yield Server(url.group().decode(), process.pid)


@asynccontextmanager
async def running(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    *,
    program: str = sys.executable,
    folder: Path | None = None,
    stdout: int | None = None,
) -> AsyncIterator[Process]:
    """Run Python, or ``program``, with these arguments until the block ends; ``log`` gets its errors, and its output without ``stdout``."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *on_leash([program, *arguments]),
            cwd=folder,
            env=_environment(variables),
            stdout=stdout or output,
            stderr=output,
        )
    try:
        yield process
    finally:
        await _stop(process)


async def answering(url: str, process: Process, log: Path) -> None:
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


async def _stop(process: Process) -> None:
    """SIGTERM, and SIGKILL for a server that has not ended a minute later."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_KILL_AFTER_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CWM_", "FASTMCP_"))}
    return {**environ, "FASTMCP_ENABLE_RICH_LOGGING": "false", **variables}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_ms(pid: int) -> float:
    """Processor time of the living threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e6


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8")[-2000:]
