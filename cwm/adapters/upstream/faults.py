"""Maps the SDK's failures to the port's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import mcp_types as types
from mcp import MCPError
from pydantic import ValidationError

from cwm.adapters.upstream.http import fault_of, oversize
from cwm.adapters.upstream.messages import number_fault
from cwm.ports.upstream import (
    UpstreamAwayError,
    UpstreamDeniedError,
    UpstreamError,
    UpstreamLostError,
    UpstreamOversizeError,
    UpstreamRefusedError,
    UpstreamSlowError,
)

# Servers also use the SDK's codes for their own errors; only the SDK's messages tell them apart.
_BROKEN: Final = ("Connection closed", "SSE stream")
_EVENT_LIMIT: Final = re.compile(r"SSE stream failed: .{0,500}?exceeded the ([0-9]{1,18}) byte limit")
_NOT_MCP: Final = ("Failed to parse", "Unexpected content type")
_LONGEST_WORDS: Final = 500
_LONGEST_PLACE: Final = 100


@contextlib.contextmanager
def port_errors() -> Iterator[None]:
    """Raise the port's errors for the SDK's failures in the block."""
    try:
        yield
    except MCPError as error:
        raise _fault(error) from None
    except ValidationError as error:
        raise _not_mcp(error) from None
    except TimeoutError:
        raise UpstreamSlowError("it took too long") from None


def has_no_method(error: UpstreamRefusedError) -> bool:
    """Whether the upstream itself reports that it has no such method."""
    return error.code == types.METHOD_NOT_FOUND


def _fault(error: MCPError) -> UpstreamError:
    if (fault := fault_of(error)) is not None:
        return fault
    if error.code == types.CONNECTION_CLOSED and (limit := _EVENT_LIMIT.search(error.message)):
        return UpstreamOversizeError(oversize(int(limit[1])))
    if error.code == types.CONNECTION_CLOSED and error.message.startswith(_BROKEN):
        return UpstreamLostError("the connection broke")
    if error.code == types.REQUEST_TIMEOUT and error.message.endswith("timed out"):
        return UpstreamSlowError("it took too long")
    if error.message.startswith(_NOT_MCP):
        return _not_mcp()
    data = None if number_fault(error.data) else error.data
    return UpstreamRefusedError(error.code, error.message, data)


def _not_mcp(error: ValidationError | None = None) -> UpstreamRefusedError:
    """An error without the upstream's text, which may be anything."""
    place = "" if error is None else ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
    at = f" (at {place[:_LONGEST_PLACE]})" if place else ""
    return UpstreamRefusedError(types.INTERNAL_ERROR, f"its answer is not MCP{at}")


def away(error: BaseException) -> UpstreamAwayError:
    """The error for ``error``, or for the first cause in a group; its message has no header."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        error = fault_of(error) or error
    denied = isinstance(error, UpstreamDeniedError)
    return (UpstreamDeniedError if denied else UpstreamAwayError)(_reason(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, UpstreamError):
        return str(error)
    if isinstance(error, MCPError):
        return f"its handshake failed ({error.code}: {error.message[:_LONGEST_WORDS]})"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
