"""Maps the SDK's failures to the port's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import mcp_types as types
from mcp import MCPError
from pydantic import ValidationError

from cwm.adapters.upstream.http import AWAY, DENIED, EXPIRED, LOST, OURS, OVERSIZE, oversize
from cwm.ports.upstream import (
    UpstreamAwayError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamSlowError,
)

# Servers also use the SDK's codes for their own errors; only the SDK's messages tell them apart.
_BROKEN: Final = ("Connection closed", "SSE stream")
_EVENT_LIMIT: Final = re.compile(r"SSE stream failed: .*exceeded the ([0-9]+) byte limit")
_NOT_MCP: Final = ("Failed to parse", "Unexpected content type")
# The SDK's message for an HTTP 404 without JSON-RPC, which may come from a proxy.
_NOT_FOUND: Final = "Not Found"
_FAULTS: Final[Mapping[int, type[UpstreamError]]] = {
    AWAY: UpstreamAwayError,
    EXPIRED: UpstreamExpiredError,
    LOST: UpstreamLostError,
    DENIED: UpstreamDeniedError,
    OVERSIZE: UpstreamOversizeError,
}


@contextlib.contextmanager
def port_errors() -> Iterator[None]:
    """Raise the port's errors for the SDK's failures in the block."""
    try:
        yield
    except MCPError as error:
        if error.data == OURS:
            raise _FAULTS[error.code](error.message) from None
        if error.code == types.CONNECTION_CLOSED and (limit := _EVENT_LIMIT.search(error.message)):
            raise UpstreamOversizeError(oversize(int(limit[1]))) from None
        if error.code == types.CONNECTION_CLOSED and error.message.startswith(_BROKEN):
            raise UpstreamLostError("the connection broke") from None
        if error.code == types.REQUEST_TIMEOUT and error.message.endswith("timed out"):
            raise UpstreamSlowError("it took too long") from None
        if error.message.startswith(_NOT_MCP):
            raise _not_mcp() from None
        raise UpstreamRefusedError(error.code, error.message, error.data) from None
    except ValidationError:
        raise _not_mcp() from None
    except TimeoutError:
        raise UpstreamSlowError("it took too long") from None


def has_no_method(error: UpstreamRefusedError) -> bool:
    """Whether the upstream itself reports that it has no such method."""
    return error.code == types.METHOD_NOT_FOUND and str(error) != _NOT_FOUND


def _not_mcp() -> UpstreamRefusedError:
    """An error without the upstream's text, which may be anything."""
    return UpstreamRefusedError(types.INTERNAL_ERROR, "It answered with something that is not MCP.")


def away(error: BaseException) -> UpstreamAwayError:
    """The error for ``error``, or for the first cause in a group; its message has no header and no body."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    denied = isinstance(error, MCPError) and error.data == OURS and error.code == DENIED
    return (UpstreamDeniedError if denied else UpstreamAwayError)(_reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, UpstreamError):
        return str(error)
    if isinstance(error, MCPError):
        return error.message if error.data == OURS else f"its handshake failed ({error.code})"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
