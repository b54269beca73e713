"""Lets containers reach what listens on this machine's loopback, through Docker's bridge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network

from tests.images.stack import docker


@contextmanager
def doorway(ports: Sequence[int]) -> Iterator[list[int]]:
    """For each of ``ports`` one on the bridge's address that leads there; containers call it host.docker.internal."""
    subnet = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}").strip()
    bridge = str(next(ip_network(subnet).hosts()))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        opened = asyncio.run_coroutine_threadsafe(_opened(bridge, ports), loop).result(10)
        yield [server.sockets[0].getsockname()[1] for server in opened]
        asyncio.run_coroutine_threadsafe(_closed(opened), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _opened(bridge: str, ports: Sequence[int]) -> list[asyncio.Server]:
    return [await asyncio.start_server(_Way(port).pass_through, bridge, 0) for port in ports]


async def _closed(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
    passing = asyncio.all_tasks() - {asyncio.current_task()}
    for task in passing:
        task.cancel()
    await asyncio.gather(*passing, return_exceptions=True)


class _Way:
    def __init__(self, port: int) -> None:
        self._port = port

    async def pass_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(_pump(reader, outer), _pump(inner, writer))
        except OSError:
            pass
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
