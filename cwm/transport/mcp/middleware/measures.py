"""Counts and times MCP requests by method, era and outcome, and tool calls by tool; over HTTP and stdio.

Each call of a CWM tool has a line in the log, without arguments and results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp_types import INTERNAL_ERROR
from mcp_types.methods import SPEC_CLIENT_METHODS, SPEC_CLIENT_NOTIFICATION_METHODS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cwm.domain.errors import CwmError, ErrorKind, StorageQuotaExceededError
from cwm.ports.meter import RequestMeter
from cwm.transport.mcp.requests.agent import Context
from cwm.transport.mcp.requests.call import ToolCall, current_call
from cwm.transport.mcp.requests.errors import error_of

SUCCESS: Final = "success"
REFUSED: Final = "refused"
"""CWM refused the request: it is wrong, its target is missing, forbidden or over a limit; or an upstream's tool failed."""
ERROR: Final = "error"
"""CWM failed, or a component that it needs."""
CANCELLED: Final = "cancelled"

_log = structlog.get_logger("cwm.mcp")

_OTHER: Final = "other"
_OF_TASKS: Final = frozenset({"tasks/get", "tasks/result", "tasks/cancel", "tasks/list"})
_METHODS: Final = frozenset(SPEC_CLIENT_METHODS) | frozenset(SPEC_CLIENT_NOTIFICATION_METHODS) | _OF_TASKS
# Not timed: they last as long as the client listens.
_LISTENING: Final = frozenset({"subscriptions/listen"})
_OURS: Final = frozenset({ErrorKind.STORAGE, ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL})


class Measures:
    """Middleware of the low-level server, outside every handler."""

    def __init__(self, meter: RequestMeter) -> None:
        self._meter = meter
        self._outcomes = dict(_outcomes())

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        started, outcome = time.perf_counter(), ERROR
        code: str | None = None
        self._meter.mcp_begun()
        try:
            result = await call_next(ctx)
            outcome, code = self._outcome_of(result)
            return result
        except MCPError as failed:
            outcome, code = self._outcome_of_error(failed)
            raise
        except ValidationError:
            outcome = REFUSED
            raise
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        finally:
            self._report(ctx, outcome, code, time.perf_counter() - started)

    def _report(self, ctx: Context, outcome: str, code: str | None, seconds: float) -> None:
        method = ctx.method if ctx.method in _METHODS else _OTHER
        era = "modern" if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else "handshake"
        self._meter.mcp_ended(method, era, outcome, None if method in _LISTENING else seconds)
        if method == "tools/call":
            call = current_call()
            self._meter.tool_called(_label(call), era, outcome, seconds)
            if call is not None and call.own is not None:
                failure = {} if code is None else {"code": code}
                _log.info(
                    "tool_called", tool=call.name, outcome=outcome, ms=round(seconds * 1000, 1), **failure
                )

    def _outcome_of(self, result: HandlerResult) -> tuple[str, str | None]:
        """The outcome, and the error's code if it has one of CWM's."""
        error_body = error_of(result)
        if error_body is None:
            return SUCCESS, None
        return self._coded(error_body) if error_body else (REFUSED, None)

    def _outcome_of_error(self, failed: MCPError) -> tuple[str, str | None]:
        if failed.error.code == REQUEST_CANCELLED:
            return CANCELLED, None
        if isinstance(failed.error.data, Mapping) and "code" in failed.error.data:
            return self._coded(failed.error.data)
        return (ERROR if failed.error.code == INTERNAL_ERROR else REFUSED), None

    def _coded(self, error_body: Mapping[str, Any]) -> tuple[str, str | None]:
        code = str(error_body.get("code"))
        is_defined = code in self._outcomes
        self._meter.mcp_failed(code if is_defined else _OTHER)
        return (self._outcomes[code], code) if is_defined else (REFUSED, None)


def _label(call: ToolCall | None) -> str:
    """The metric label: the name of a CWM tool; ``<upstream>_*`` for all tools of a configured upstream."""
    if call is None:
        return _OTHER
    if call.own is not None:
        return call.name
    return f"{call.upstream}_*" if call.upstream is not None and "_" in call.name else _OTHER


def _outcomes(error: type[CwmError] = CwmError) -> Iterator[tuple[str, str]]:
    """Each error code with its outcome in the metrics."""
    ours = error.kind in _OURS and not issubclass(error, StorageQuotaExceededError)
    yield error.code, ERROR if ours else REFUSED
    for narrower in error.__subclasses__():
        yield from _outcomes(narrower)
