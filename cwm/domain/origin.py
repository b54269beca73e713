"""Where a request came from: its face, the client's address and user agent.

The face sets it in a ``ContextVar``, so that whoever writes an audit event need not be passed it. Work that no
request causes has the gateway itself as its origin.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import AddressValueError, IPv6Address, IPv6Network
from typing import Final

MAX_USER_AGENT_CHARS: Final = 200


class Face(StrEnum):
    MCP = "mcp"
    OPENAI = "openai"
    HTTP = "http"
    STDIO = "stdio"
    CLI = "cli"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a request. ``user_agent`` is the client's own, unverified statement."""

    face: Face
    address: str | None = None
    user_agent: str | None = None

    @property
    def source(self) -> str | None:
        """The key by which unauthenticated callers are counted.

        It is the IPv4 address (also of a mapped one), or the /64 network of an IPv6 address, in which each host can
        choose its own address.
        """
        if self.address is None or ":" not in self.address:
            return self.address
        try:
            mapped = IPv6Address(self.address).ipv4_mapped
            return str(mapped or IPv6Network((self.address, 64), strict=False))
        except AddressValueError:
            return self.address


_OF_THE_GATEWAY: Final = Origin(Face.GATEWAY)
ORIGIN: Final[ContextVar[Origin]] = ContextVar("cwm_origin", default=_OF_THE_GATEWAY)


def safe_user_agent(value: str) -> str | None:
    """``value`` made safe to store and print.

    Characters that are not printable become ``?``, and it is cut at 200 characters; None when nothing is left.
    """
    printable = "".join(character if character.isprintable() else "?" for character in value)
    return printable[:MAX_USER_AGENT_CHARS].strip() or None
