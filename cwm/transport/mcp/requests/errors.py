"""Coded errors in the form that MCP clients read: ``{code, message, retryable, context}`` and ``isError``.

The object is the result's text and, for programs, in ``_meta`` under ``dev.cwm/error``. It is never
``structuredContent``: some clients validate that against the tool's output schema and then show nothing at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import structlog
from fastmcp.exceptions import NotFoundError, ResourceError, ToolError, ValidationError
from fastmcp.resources import ResourceResult
from fastmcp.server.middleware import Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp import MCPError
from mcp.server.context import HandlerResult
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    TextContent,
)
from pydantic import BaseModel
from pydantic import ValidationError as ArgumentsError
from pydantic_core import ErrorDetails

from cwm.domain.errors import (
    CwmError,
    ErrorKind,
    InternalError,
    InvalidParameterError,
    InvalidSessionIdError,
    InvalidWindowNameError,
)
from cwm.domain.showable import DEEPEST_ARGUMENT, flaw
from cwm.services.aside import aside_of
from cwm.services.audit.journal import Journal
from cwm.transport.http.errors import log_detail
from cwm.transport.mcp.requests.agent import Agency, CallContext, NextCall, NextRead, ReadContext, request_of
from cwm.transport.mcp.requests.call import current_call
from cwm.transport.mcp.requests.retry_after import tell_limit

META_KEY: Final = "dev.cwm/error"

_CODED: Final[dict[str, type[CwmError]]] = {
    "session_id": InvalidSessionIdError,
    "new_session_id": InvalidSessionIdError,
    "window_name": InvalidWindowNameError,
    "source_window": InvalidWindowNameError,
    "target_window": InvalidWindowNameError,
}
_OWN_WORDS: Final = {
    "missing_argument": "is required",
    "missing_keyword_only_argument": "is required",
    "missing": "is required",
    "unexpected_keyword_argument": "is not a field of this tool",
    "extra_forbidden": "is not a field of this tool",
}
_MOST_FAULTS: Final = 5
_LONGEST_NAME: Final = 64

_log = structlog.get_logger("cwm.mcp")


class RefusedError(ToolError):
    """Carries a coded error through FastMCP, which logs a traceback for any other exception."""

    def __init__(self, error: CwmError) -> None:
        super().__init__(error.published, log_level=logging.DEBUG)
        self.error = error


class CodedErrors(Middleware):
    """Turns every failure of a tool into a result with ``isError``; only an unknown tool is a protocol error.

    A refusal that looks like an attack, or of what is not there for the caller, is recorded in the audit log here, once, whichever layer refused.
    """

    def __init__(self, journal: Journal, agency: Agency) -> None:
        self._journal = journal
        self._agency = agency

    async def on_call_tool(self, context: CallContext, call_next: NextCall) -> ToolResult:
        arguments = context.message.arguments or {}
        refusal = await aside_of(arguments, partial(unusable_argument, arguments))
        if refusal is not None:
            return error_result(refusal)
        try:
            return await call_next(context)
        except RefusedError as refused:
            if isinstance(refused.error, InternalError):
                _log.error("tool_failed", tool=context.message.name, exc_info=refused.__cause__ or refused)
            tell_limit(request_of(context), refused.error)
            await self._note(context, context.message.name, refused.error)
            return error_result(refused.error)
        except ValidationError as invalid:
            if (suspect := _suspect(invalid)) is not None:
                await self._note(context, context.message.name, suspect)
            return error_result(_of_arguments(invalid))
        except NotFoundError:
            unknown = InvalidParameterError("There is no such tool.", field="name")
            raise MCPError(INVALID_PARAMS, "Unknown tool", unknown.as_dict()) from None
        except ToolError as failed:
            _log.exception("tool_failed", tool=context.message.name)
            return error_result(coded(failed))

    async def on_read_resource(self, context: ReadContext, call_next: NextRead) -> ResourceResult:
        try:
            return await call_next(context)
        except ResourceError as failed:
            error = coded(failed)
            tell_limit(request_of(context), error)
            await self._note(context, "resource", error)
            if isinstance(error, InternalError):
                _log.exception("resource_failed", uri=str(context.message.uri)[:_LONGEST_NAME])
            raise protocol_error(error) from failed

    async def _note(self, context: MiddlewareContext[Any], where: str, error: CwmError) -> None:
        with suppress(CwmError):
            call = current_call()
            principal = await self._agency.principal(request_of(context)) if call is None else call.principal
            await self._journal.injection(principal, where, error)
            await self._journal.not_found(principal, where, error)


def error_result(error: CwmError) -> ToolResult:
    log_detail(error)
    body = error.as_dict()
    return ToolResult(
        content=[TextContent(type="text", text=json.dumps(body))],
        meta={META_KEY: body},
        is_error=True,
    )


def error_of(result: HandlerResult) -> Mapping[str, Any] | None:
    """The error object of a failed result, empty if it has none of CWM's; None for a success."""
    if isinstance(result, BaseModel):
        failed, meta = getattr(result, "is_error", False), getattr(result, "meta", None)
    else:
        failed, meta = (result or {}).get("isError", False), (result or {}).get("_meta")
    return ((meta or {}).get(META_KEY) or {}) if failed else None


def protocol_error(error: CwmError, code: int = INTERNAL_ERROR) -> MCPError:
    """The error as JSON-RPC error, for methods whose results cannot express a failure."""
    log_detail(error)
    return MCPError(code, error.published, error.as_dict())


@contextmanager
def protocol_errors(invalid: int = INTERNAL_ERROR) -> Iterator[None]:
    """Raise a coded error of the block as :func:`protocol_error`; with the code ``invalid`` for a request that is wrong."""
    try:
        yield
    except CwmError as refused:
        code = invalid if refused.kind is ErrorKind.INVALID else INTERNAL_ERROR
        raise protocol_error(refused, code) from refused


def internal_error() -> InternalError:
    """The error for a failure of CWM itself: the caller gets no details."""
    return InternalError("CWM failed unexpectedly; its log has the details.")


def coded(failed: BaseException) -> CwmError:
    """The coded error that caused a failure, which FastMCP wraps once or twice; else an internal error."""
    cause: BaseException | None = failed
    while cause is not None:
        if isinstance(cause, CwmError):
            return cause
        cause = cause.__cause__
    return internal_error()


def argument_error(faults: Sequence[ErrorDetails]) -> CwmError:
    """CWM-1001, 1002 or 1003, by the first wrong field. The message names fields and repeats no value."""
    faults_by_path: dict[str, str] = {}
    for fault in faults[:_MOST_FAULTS]:
        faults_by_path.setdefault(_path(fault), _fault(fault))
    first = str(faults[0]["loc"][0]) if faults[0]["loc"] else ""
    kind = _CODED.get(first, InvalidParameterError)
    context: dict[str, Any] = {"field": _shown(first)}
    if len(faults_by_path) > 1:
        context["fields"] = list(faults_by_path)
    return kind("; ".join(f"{path}: {fault}" for path, fault in faults_by_path.items()) + ".", **context)


def unusable_argument(arguments: Mapping[str, Any]) -> CwmError | None:
    """CWM-1001, 1002 or 1003 for the first argument that no tool can take; None if there is none."""
    for name, value in arguments.items():
        if (fault := unusable(name, value)) is not None:
            field, kind = _shown(name), _CODED.get(name, InvalidParameterError)
            return kind(f"{field}: {fault}.", field=field)
    return None


def unusable(*values: Any) -> str | None:
    """Why no tool and no upstream can take what the values contain; None if they can."""
    return next(filter(None, (flaw(value, DEEPEST_ARGUMENT) for value in values)), None)


def _of_arguments(invalid: ValidationError) -> CwmError:
    cause = invalid.__cause__
    if not isinstance(cause, ArgumentsError):
        return InvalidParameterError("This tool does not accept these arguments.")
    return argument_error(cause.errors(include_url=False, include_context=False, include_input=False))


def _suspect(invalid: ValidationError) -> CwmError | None:
    """The error for the first value that fails its pattern and looks like an attack; None if there is none."""
    cause = invalid.__cause__
    if not isinstance(cause, ArgumentsError):
        return None
    for fault in cause.errors(include_url=False, include_context=False):
        value = fault["input"]
        if fault["type"] == "string_pattern_mismatch" and isinstance(value, str):
            error = argument_error([fault]).refusing(value)
            if error.injection is not None:
                return error
    return None


def _path(fault: ErrorDetails) -> str:
    return ".".join(_shown(str(part)) for part in fault["loc"]) or "arguments"


def _fault(fault: ErrorDetails) -> str:
    message = fault["msg"].removeprefix("Value error, ")
    return _OWN_WORDS.get(fault["type"], message[:1].lower() + message[1:])


def _shown(name: str) -> str:
    """A name that the caller may have invented, shortened, and escaped so that terminals and logs show it safely."""
    escaped_name = name[:_LONGEST_NAME].encode("unicode_escape").decode()
    return escaped_name if len(name) <= _LONGEST_NAME else f"{escaped_name}…"
