"""Maps the SDK's failures to the port's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import mcp_types as types
from mcp import MCPError
from pydantic import ValidationError

from cwm.adapters.upstream.http import AWAY, DENIED, EXPIRED, LOST, OURS
from cwm.ports.upstream import (
    UpstreamAwayError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamRefusedError,
    UpstreamSlowError,
)

# Servers also use the SDK's codes for their own errors; only the SDK's messages tell them apart.
_BROKEN: Final = ("Connection closed", "SSE stream")
_NOT_MCP: Final = ("Failed to parse", "Unexpected content type")
# The SDK's message for an HTTP 404 without JSON-RPC, which may come from a proxy.
_NOT_FOUND: Final = "Not Found"
_FAULTS: Final[Mapping[int, type[UpstreamError]]] = {
    AWAY: UpstreamAwayError,
    EXPIRED: UpstreamExpiredError,
    LOST: UpstreamLostError,
    DENIED: UpstreamDeniedError,
}


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raise the port's errors for the SDK's failures in the block."""
    try:
        yield
    except MCPError as failed:
        if failed.data == OURS:
            raise _FAULTS[failed.code](failed.message) from None
        if failed.code == types.CONNECTION_CLOSED and failed.message.startswith(_BROKEN):
            raise UpstreamLostError("the connection broke") from None
        if failed.code == types.REQUEST_TIMEOUT and failed.message.endswith("timed out"):
            raise UpstreamSlowError("it took too long") from None
        if failed.message.startswith(_NOT_MCP):
            raise _not_mcp() from None
        raise UpstreamRefusedError(failed.code, failed.message, failed.data) from None
    except ValidationError:
        raise _not_mcp() from None
    except TimeoutError:
        raise UpstreamSlowError("it took too long") from None


def knows_not(refused: UpstreamRefusedError) -> bool:
    """Whether the upstream itself reports that it has no such method."""
    return refused.code == types.METHOD_NOT_FOUND and str(refused) != _NOT_FOUND


def _not_mcp() -> UpstreamRefusedError:
    """An error without the upstream's text, which may be anything."""
    return UpstreamRefusedError(types.INTERNAL_ERROR, "It answered with something that is not MCP.")


def away(failed: BaseException) -> UpstreamAwayError:
    """The error for ``failed``, or for the first cause in a group; its message has no header and no body."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    denied = isinstance(failed, MCPError) and failed.data == OURS and failed.code == DENIED
    return (UpstreamDeniedError if denied else UpstreamAwayError)(_why(failed))


def _why(failed: BaseException) -> str:
    if isinstance(failed, UpstreamError):
        return str(failed)
    if isinstance(failed, MCPError):
        return failed.message if failed.data == OURS else f"its handshake failed ({failed.code})"
    if isinstance(failed, OSError):
        return failed.strerror or type(failed).__name__
    return type(failed).__name__
