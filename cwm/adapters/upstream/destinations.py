"""Refuses connections to link-local addresses, where clouds serve a machine's credentials, whatever the host name."""

from __future__ import annotations

from typing import Any

import httpcore2

from cwm.adapters.http.sockets import AsyncioBackend
from cwm.domain.web_origin import is_link_local


class LinkLocalGuard(AsyncioBackend):
    """Checks a connection's actual address before a byte is sent: a name may resolve differently each time."""

    async def connect_tcp(self, host: str, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        if is_link_local(host):
            raise httpcore2.ConnectError("link-local addresses are refused")
        stream = await super().connect_tcp(host, *args, **options)
        address = stream.get_extra_info("server_addr")
        if address is None or is_link_local(str(address[0])):
            await stream.aclose()
            raise httpcore2.ConnectError("link-local addresses are refused")
        return stream
