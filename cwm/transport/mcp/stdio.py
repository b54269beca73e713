"""MCP over standard input and output, for both protocol eras: the client's first request determines which."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from cwm.domain.origin import ORIGIN, Face, Origin
from cwm.transport.mcp.mcp_server import McpFace

_STDIN: Final = 0
_CHUNK_BYTES: Final = 64 * 1024


async def serve_stdio(face: McpFace) -> None:
    """Serve the client of this process until it closes standard input, disconnects, or the task is cancelled.

    Cancellation ends it as if the client had closed standard input.
    """
    ORIGIN.set(Origin(Face.STDIO))
    with _closable_stdin() as close:
        server = asyncio.create_task(face.run_stdio_async(show_banner=False))
        try:
            await asyncio.wait({server})
        finally:
            close()
            try:
                await server
            except* (BrokenPipeError, ConnectionResetError):
                structlog.get_logger("cwm.mcp").info("stdio_client_left")


@contextmanager
def _closable_stdin() -> Iterator[Callable[[], None]]:
    """Standard input that this process can end.

    A thread that reads from the client cannot be cancelled. So the server reads from a pipe instead, and a daemon
    thread, which nobody waits for, copies the client's input into it.
    """
    client = os.dup(_STDIN)
    outlet, inlet = os.pipe()
    os.dup2(outlet, _STDIN)
    os.close(outlet)
    threading.Thread(target=_pump, args=(client, inlet), name="stdin", daemon=True).start()

    yield lambda: _end(inlet)


def _pump(client: int, inlet: int) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(client, _CHUNK_BYTES):
            _write(inlet, chunk)
    _end(inlet)


def _end(inlet: int) -> None:
    """End the pipe but keep its descriptor number in use: a file that got the number next would be written to or closed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, inlet, inheritable=False)
    os.close(null)


def _write(inlet: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(inlet, rest) :]
