"""Looks up the addresses of a name."""

from __future__ import annotations

import asyncio
import socket


async def addresses_of(host: str) -> tuple[str, ...]:
    """The addresses in a fixed order. Raises OSError if there is none, or nobody answers."""
    address_infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(sorted({str(address[0]) for *_, address in address_infos}))
