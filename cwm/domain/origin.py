"""Where a request came from: the face, the client's address, what the client calls itself.

It travels with the work that a request causes, in a ``ContextVar`` that the face sets: whoever writes an
audit event need not be told. What no request causes comes from the gateway itself.
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
    """``user_agent`` is what the client says of itself, and no more than that."""

    face: Face
    address: str | None = None
    user_agent: str | None = None

    @property
    def source(self) -> str | None:
        """Whom to count a stranger as: the address, and of IPv6 the network in which each may choose their own."""
        if self.address is None or ":" not in self.address:
            return self.address
        try:
            mapped = IPv6Address(self.address).ipv4_mapped
            return str(mapped or IPv6Network((self.address, 64), strict=False))
        except AddressValueError:
            return self.address


_OF_THE_GATEWAY: Final = Origin(Face.GATEWAY)
ORIGIN: Final[ContextVar[Origin]] = ContextVar("cwm_origin", default=_OF_THE_GATEWAY)


def shown_user_agent(value: str) -> str | None:
    """``value`` as it may be written down: short, and nothing in it that a terminal or a log would act on."""
    kept = "".join(character if character.isprintable() else "?" for character in value)
    return kept[:MAX_USER_AGENT_CHARS].strip() or None
