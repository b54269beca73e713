"""Determines where an HTTP request comes from, for audit events written while it is served."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Receive, Scope, Send

from cwm.domain.origin import ORIGIN, Face, Origin, safe_user_agent

_FACES: Final = (("/mcp", Face.MCP), ("/v1", Face.OPENAI))
_MOST_HOPS: Final = 32

Network: TypeAlias = IPv4Network | IPv6Network
Address: TypeAlias = IPv4Address | IPv6Address


class OriginLayer:
    """ASGI middleware. ``X-Forwarded-For`` is read from its end, as far as trusted proxies wrote it."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network] = ()) -> None:
        self.app = app
        self.trusted = tuple(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        token = ORIGIN.set(self._origin(scope))
        try:
            await self.app(scope, receive, send)
        finally:
            ORIGIN.reset(token)

    def _origin(self, scope: Scope) -> Origin:
        user_agent, forwarded = b"", []
        for name, value in scope["headers"]:
            if name == b"user-agent":
                user_agent = value
            elif name == b"x-forwarded-for":
                forwarded.append(value)
        return Origin(
            next((face for path, face in _FACES if scope["path"].startswith(path)), Face.HTTP),
            self._address(scope, forwarded),
            safe_user_agent(user_agent.decode("latin-1")),
        )

    def _address(self, scope: Scope, forwarded: Sequence[bytes]) -> str | None:
        """The last address that is not a trusted proxy's. A hop that is not an address ends the search."""
        client = scope.get("client")
        peer = None if client is None else str(client[0])
        if not forwarded or not self.trusted or peer is None:
            return peer
        address = _parsed(peer)
        hops = b",".join(forwarded).decode("latin-1").split(",")
        for hop in reversed(hops[-_MOST_HOPS:]):
            if address is None or not self._trusts(address) or (before := _parsed(hop)) is None:
                break
            address = before
        return peer if address is None else str(address)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self.trusted)


def _parsed(hop: str) -> Address | None:
    """Parses an address with or without port: ``192.0.2.1:443``, ``2001:db8::1``, ``[2001:db8::1]:443``."""
    bare = hop.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
