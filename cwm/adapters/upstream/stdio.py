"""Upstreams that are programs: started with the session, stopped with it, their stderr in our log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from mcp.client.stdio import StdioServerParameters, stdio_client

from cwm.domain.upstream import UpstreamSpec

_LONGEST_LINE: Final = 2000
_HIDDEN: Final = "[hidden]"

_log = structlog.get_logger("cwm.upstream")


@asynccontextmanager
async def program(spec: UpstreamSpec) -> AsyncIterator[tuple[Any, Any]]:
    """The program's streams. It ends, with every process it started, when the context does."""
    command, *arguments = spec.command
    parameters = StdioServerParameters(command=command, args=arguments, env=dict(spec.env), cwd=spec.cwd)
    reading, writing = os.pipe()
    lines = asyncio.create_task(_log_lines(spec, reading))
    try:
        with os.fdopen(writing, "w") as stderr:
            async with stdio_client(parameters, errlog=stderr) as streams:
                stderr.close()
                yield streams
    finally:
        lines.cancel()
        await asyncio.wait({lines})


async def _log_lines(spec: UpstreamSpec, reading: int) -> None:
    """Until the last process that writes there is gone."""
    stream = asyncio.StreamReader(limit=2**20)
    pipe = os.fdopen(reading, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    secrets = [value for value in spec.env.values() if value]
    try:
        while line := await _line(stream):
            text = line.decode(errors="replace").rstrip()
            for secret in secrets:
                text = text.replace(secret, _HIDDEN)
            _log.info("upstream_said", upstream=spec.name, text=text[:_LONGEST_LINE])
    finally:
        transport.close()


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:
        # Longer than the buffer: what is buffered was dropped by asyncio.
        return b"...\n"
