"""Maps the SDK's failures to the port's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from pydantic import ValidationError

from cwm.adapters.upstream.http import (
    AWAY,
    BUSY,
    DENIED,
    EXPIRED,
    LOST,
    OVERSIZE,
    REJECTED,
    UNREADABLE,
    facts_of,
    oversize,
)
from cwm.adapters.upstream.messages import number_fault
from cwm.ports.upstream import (
    UpstreamAwayError,
    UpstreamBusyError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamExpiredError,
    UpstreamLostError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamRejectedError,
    UpstreamSlowError,
)

# Servers also use the SDK's codes for their own errors; only the SDK's messages tell them apart.
_BROKEN: Final = ("Connection closed", "SSE stream")
_EVENT_LIMIT: Final = re.compile(r"SSE stream failed: .*exceeded the ([0-9]+) byte limit")
_NOT_MCP: Final = ("Failed to parse", "Unexpected content type")
_FAULTS: Final[Mapping[int, type[UpstreamError]]] = {
    AWAY: UpstreamAwayError,
    EXPIRED: UpstreamExpiredError,
    LOST: UpstreamLostError,
    DENIED: UpstreamDeniedError,
    OVERSIZE: UpstreamOversizeError,
}
_LONGEST_WORDS: Final = 500
_LONGEST_PLACE: Final = 100


@contextlib.contextmanager
def port_errors() -> Iterator[None]:
    """Raise the port's errors for the SDK's failures in the block."""
    try:
        yield
    except MCPError as error:
        if (facts := facts_of(error)) is not None:
            raise _fault(error, facts) from None
        if error.code == types.CONNECTION_CLOSED and (limit := _EVENT_LIMIT.search(error.message)):
            raise UpstreamOversizeError(oversize(int(limit[1]))) from None
        if error.code == types.CONNECTION_CLOSED and error.message.startswith(_BROKEN):
            raise UpstreamLostError("the connection broke") from None
        if error.code == types.REQUEST_TIMEOUT and error.message.endswith("timed out"):
            raise UpstreamSlowError("it took too long") from None
        if error.message.startswith(_NOT_MCP):
            raise _not_mcp() from None
        data = None if number_fault(error.data) else error.data
        raise UpstreamRefusedError(error.code, error.message, data) from None
    except ValidationError as error:
        raise _not_mcp(error) from None
    except TimeoutError:
        raise UpstreamSlowError("it took too long") from None


def has_no_method(error: UpstreamRefusedError) -> bool:
    """Whether the upstream itself reports that it has no such method."""
    return error.code == types.METHOD_NOT_FOUND


def _fault(error: MCPError, facts: Mapping[str, Any]) -> UpstreamError:
    if error.code == BUSY:
        return UpstreamBusyError(error.message, **facts)
    if error.code == REJECTED:
        return UpstreamRejectedError(error.message, **facts)
    if error.code == UNREADABLE:
        return UpstreamRefusedError(types.INTERNAL_ERROR, error.message)
    return _FAULTS[error.code](error.message)


def _not_mcp(error: ValidationError | None = None) -> UpstreamRefusedError:
    """An error without the upstream's text, which may be anything."""
    place = "" if error is None else ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
    at = f" (at {place[:_LONGEST_PLACE]})" if place else ""
    return UpstreamRefusedError(types.INTERNAL_ERROR, f"its answer is not MCP{at}")


def away(error: BaseException) -> UpstreamAwayError:
    """The error for ``error``, or for the first cause in a group; its message has no header."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    denied = isinstance(error, MCPError) and facts_of(error) is not None and error.code == DENIED
    return (UpstreamDeniedError if denied else UpstreamAwayError)(_reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, UpstreamError):
        return str(error)
    if isinstance(error, MCPError):
        if facts_of(error) is not None:
            return error.message
        return f"its handshake failed ({error.code}: {error.message[:_LONGEST_WORDS]})"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
