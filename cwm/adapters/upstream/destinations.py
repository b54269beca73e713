"""Refuses connections to link-local addresses, where clouds serve a machine's credentials, whatever the host name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpcore2
import httpx2

from cwm.domain.web_origin import is_link_local


class LinkLocalGuard(httpcore2.AsyncNetworkBackend):
    """Checks a connection's actual address before a byte is sent: a name may resolve differently each time."""

    def __init__(self, inner: httpcore2.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        if is_link_local(host):
            raise httpcore2.ConnectError("link-local addresses are refused")
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        address = stream.get_extra_info("server_addr")
        if address is None or is_link_local(str(address[0])):
            await stream.aclose()
            raise httpcore2.ConnectError("link-local addresses are refused")
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def without_link_local(transport: httpx2.AsyncHTTPTransport) -> httpx2.AsyncHTTPTransport:
    """``transport`` with the check, set on its pool because httpx has no parameter for it."""
    pool = transport._pool  # noqa: SLF001
    pool._network_backend = LinkLocalGuard(pool._network_backend)  # noqa: SLF001
    return transport
