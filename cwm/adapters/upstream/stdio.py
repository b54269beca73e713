"""Upstreams that are programs: started and stopped with the session, their standard error in our log.

Replaces the SDK's transport, which leaves a program's children running when the program itself ends in time,
does not notice the end of a program whose children keep its pipes open, and logs non-message lines in full.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import IO, Any, Final

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from cwm.adapters.telemetry.redaction import MASK, SHORTEST
from cwm.adapters.upstream.messages import read, too_long
from cwm.background import cancel_and_wait
from cwm.domain.upstream import UpstreamSpec

_LONGEST_TEXT: Final = 2000
_LONGEST_LINE: Final = 64 * 1024
_LONGEST_END: Final = 256
_CHUNK: Final = 64 * 1024
_GRACE_SECONDS: Final = 2.0
_LAST_WORDS_SECONDS: Final = 0.5

_log = structlog.get_logger("cwm.upstream")

_Incoming = MemoryObjectSendStream[SessionMessage | Exception]
_Outgoing = MemoryObjectReceiveStream[SessionMessage]


@asynccontextmanager
async def program(spec: UpstreamSpec) -> AsyncIterator[tuple[Any, Any]]:
    """The program's streams. The program and its whole process group end with the context."""
    child = _start(spec)
    # Readable when the program has ended, even if others hold its pipes. Its group id stays valid until it is reaped.
    pidfd = os.pidfd_open(child.pid)
    secrets = _secrets(spec)
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    receiving = asyncio.create_task(_receive(spec, secrets, _pipe(child.stdout), incoming))
    stderr_task = asyncio.create_task(_log_stderr(spec.name, secrets, _pipe(child.stderr)))
    sending = asyncio.create_task(_send(_pipe(child.stdin), outgoing, incoming))
    ending = asyncio.create_task(_close_at_its_end(pidfd, receiving, incoming))
    try:
        yield read, write
    finally:
        await cancel_and_wait(sending, ending)
        await _end(child, pidfd)
        await asyncio.wait({receiving, stderr_task}, timeout=_LAST_WORDS_SECONDS)
        await cancel_and_wait(receiving, stderr_task)
        for stream in (incoming, read, write, outgoing):
            stream.close()
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            pipe.close()
        os.close(pidfd)


def _start(spec: UpstreamSpec) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the operator configured it
        spec.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**get_default_environment(), **spec.env},
        cwd=spec.cwd,
        start_new_session=True,
    )


async def _receive(spec: UpstreamSpec, secrets: list[str], pipe: int, incoming: _Incoming) -> None:
    """Pass on the messages that the program prints; log any other line as if it were on stderr."""
    most = spec.bounds.message_bytes
    spread = _Spread(most)
    async with incoming:
        async for line, cut_end in _lines(pipe, most):
            for text in [line] if cut_end is not None else spread.add(line):
                try:
                    messages = read(text) if cut_end is None else [too_long(text, cut_end, most)]
                except ValueError:
                    _log_line(spec.name, secrets, text)
                    continue
                # Keep reading when the receiver is closed: a program that cannot print cannot end.
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    for message in messages:
                        await incoming.send(SessionMessage(message))


class _Spread:
    """Joins the lines of a message that is printed over several: from a line ``{`` to a line ``}``, the rest indented."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, line: bytes) -> list[bytes]:
        """The lines that are complete with this one."""
        if not self._lines and line.rstrip() != b"{":
            return [line]
        self._lines.append(line)
        self._size += len(line)
        is_end = len(self._lines) > 1 and not line.startswith((b" ", b"\t"))
        if not is_end and self._size <= self._most:
            return []
        lines, self._lines, self._size = self._lines, [], 0
        return [b"\n".join(lines)] if line.rstrip() == b"}" else lines


async def _send(pipe: int, outgoing: _Outgoing, incoming: _Incoming) -> None:
    async for each in outgoing:
        rest = memoryview(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        try:
            while rest:
                await anyio.wait_writable(pipe)
                with suppress(BlockingIOError):
                    rest = rest[os.write(pipe, rest) :]
        except OSError:
            # The program closed its stdin, so it will not answer.
            incoming.close()
            return


async def _log_stderr(upstream: str, secrets: list[str], pipe: int) -> None:
    async for line, _ in _lines(pipe, _LONGEST_LINE):
        _log_line(upstream, secrets, line)


async def _close_at_its_end(pidfd: int, receiving: asyncio.Task[None], incoming: _Incoming) -> None:
    await anyio.wait_readable(pidfd)
    await asyncio.wait({receiving}, timeout=_LAST_WORDS_SECONDS)
    incoming.close()


async def _end(child: subprocess.Popen[bytes], pidfd: int) -> None:
    """As MCP requires: close stdin, then SIGTERM; finally SIGKILL for the whole process group."""
    assert child.stdin is not None
    child.stdin.close()
    if not await _has_ended(pidfd):
        _signal(child, signal.SIGTERM)
        await _has_ended(pidfd)
    _signal(child, signal.SIGKILL)
    if not await _has_ended(pidfd):
        _log.warning("upstream_does_not_end", pid=child.pid)
    child.poll()


async def _has_ended(pidfd: int) -> bool:
    """Whether the program ends within the grace."""
    with anyio.move_on_after(_GRACE_SECONDS):
        await anyio.wait_readable(pidfd)
        return True
    return False


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


async def _lines(pipe: int, longest: int) -> AsyncIterator[tuple[bytes, bytes | None]]:
    """Lines until the end of the pipe, each cut to ``longest`` bytes; with the last bytes of a line that was cut."""
    parts: list[bytes] = []
    size, end = 0, b""
    while True:
        await anyio.wait_readable(pipe)
        chunk = os.read(pipe, _CHUNK)
        if not chunk:
            break
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            size, end = size + len(part), (end + part)[-_LONGEST_END:]
            yield b"".join((*parts, part))[:longest], end if size > longest else None
            parts, size, end = [], 0, b""
        if rest:
            if size < longest:
                parts.append(rest)
            size, end = size + len(rest), (end + rest)[-_LONGEST_END:]
    if parts:
        yield b"".join(parts)[:longest], end if size > longest else None


def _log_line(upstream: str, secrets: list[str], line: bytes) -> None:
    text = line[:_LONGEST_LINE].decode(errors="replace").strip()
    for secret in secrets:
        text = text.replace(secret, MASK)
    if text:
        _log.info("upstream_said", upstream=upstream, text=text[:_LONGEST_TEXT])


def _secrets(spec: UpstreamSpec) -> list[str]:
    """Text to mask in logs: each line of each variable, longest first."""
    lines = {line.strip() for value in spec.env.values() for line in value.splitlines()}
    return sorted((line for line in lines if len(line) >= SHORTEST), key=len, reverse=True)


def _pipe(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
