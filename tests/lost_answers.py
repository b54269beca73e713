"""A Redis whose answers can get lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


@asynccontextmanager
async def losing_one_answer(url: str, to: bytes) -> AsyncIterator[str]:
    """The URL of the same store, but the answer to the first command that holds ``to`` is lost with its connection."""
    lost, parts = False, urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal lost
        behind, ahead = await asyncio.open_connection(parts.hostname, parts.port)
        while command := await reader.read(65_536):
            ahead.write(command)
            answer = await behind.read(65_536)
            # The library's scripts are not in the store yet when they are asked for the first time.
            if to in command and not answer.startswith(b"-NOSCRIPT") and not lost:
                lost = True
                break
            writer.write(answer)
        for each in (ahead, writer):
            each.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    password = "" if parts.password is None else f":{parts.password}@"
    yield f"redis://{password}127.0.0.1:{server.sockets[0].getsockname()[1]}{parts.path}"
    assert lost
    server.close()
    await server.wait_closed()
