"""Coded errors in the format of the API whose path was asked: Anthropic's below ``/v1/messages``, else OpenAI's.

Below ``/v1/responses`` and ``/v1/conversations`` the code is OpenAI's where it has one, because clients look at it.
"""

from __future__ import annotations

import json
from typing import Any, Final

import structlog
from mcp_types import INVALID_REQUEST
from structlog.contextvars import get_contextvars

from cwm.domain.errors import CwmError, ErrorKind, LimitError, StorageQuotaExceededError
from cwm.domain.pooling import POOLING_PATHS

STATUS: Final[dict[ErrorKind, int]] = {
    ErrorKind.INVALID: 400,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.LIMITED: 429,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.INTERNAL: 500,
    ErrorKind.STORAGE: 503,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.TIMEOUT: 504,
}
_TYPES: Final[dict[ErrorKind, str]] = {
    ErrorKind.INVALID: "invalid_request_error",
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.CONFLICT: "conflict_error",
    ErrorKind.LIMITED: "rate_limit_error",
    ErrorKind.TOO_LARGE: "invalid_request_error",
}
_ANTHROPIC_TYPES: Final[dict[ErrorKind, str]] = {
    ErrorKind.INVALID: "invalid_request_error",
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.CONFLICT: "invalid_request_error",
    ErrorKind.LIMITED: "rate_limit_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.UNAVAILABLE: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
}
# Statuses that say more than the kind of an error.
_ANTHROPIC_STATUS_TYPES: Final = {404: "not_found_error", 413: "request_too_large"}
_MCP_PATH: Final = "/mcp"
_RESPONSES: Final = ("/v1/responses", "/v1/conversations")
_CODES_BY_CWM: Final = {
    "CWM-1004": "mutually_exclusive_parameters",
    "CWM-1005": "context_length_exceeded",
    "CWM-2009": "previous_response_not_found",
    "CWM-3010": "conversation_locked",
}
_CODES_BY_KIND: Final[dict[ErrorKind, str]] = {
    ErrorKind.LIMITED: "rate_limit_exceeded",
    # Codex takes "server_is_overloaded" for a reason to give up at once, and tells of a model at capacity.
    ErrorKind.UNAVAILABLE: "server_error",
}
_OVERLOADED: Final = 529
_NO_ROOM: Final = 507
# Beyond it the SDKs of OpenAI and Anthropic, and Codex, ask again after a second.
_MOST_RETRY_AFTER_SECONDS: Final = 60
AGAIN: Final = b"x-should-retry"

_log = structlog.get_logger("cwm.http")


def log_detail(error: CwmError) -> None:
    """Log what the published error leaves out."""
    if error.published != error.message or error.published_context != error.context:
        _log.warning("error_detail", code=error.code, message=error.message, context=error.context)


def error_body(error: CwmError, path: str = "", status: int | None = None) -> bytes:
    """OpenAI: ``{"error": {message, type, param, code, retryable, context}}``; ``param`` names a field or is null.

    Anthropic: ``{"type": "error", "error": {type, message, code, retryable, context}, "request_id"}``.
    For an exceeded limit, ``retry_after_seconds`` is added beside ``error``.
    """
    log_detail(error)
    coded = {"code": error.code, "retryable": error.retryable, "context": error.published_context}
    body: dict[str, Any]
    if is_anthropic(path):
        kind = _ANTHROPIC_STATUS_TYPES.get(status or 0) or _ANTHROPIC_TYPES.get(error.kind, "api_error")
        body = {"type": "error", "error": {"type": kind, "message": error.published, **coded}}
        if (request_id := get_contextvars().get("request_id")) is not None:
            body["request_id"] = request_id
    else:
        kind, param = _TYPES.get(error.kind, "server_error"), error.context.get("field")
        if path.startswith(_RESPONSES):
            kind = "invalid_request_error" if error.kind is ErrorKind.NOT_FOUND else kind
            if code := _CODES_BY_CWM.get(error.code) or _CODES_BY_KIND.get(error.kind):
                coded |= {"code": code, "cwm_code": error.code}
        body = {"error": {"message": error.published, "type": kind, "param": param, **coded}}
    if isinstance(error, LimitError):
        body["retry_after_seconds"] = error.retry_after_seconds
    return json.dumps(body, separators=(",", ":")).encode()


def face_body(error: CwmError, path: str, status: int | None = None) -> bytes:
    """The error in the format of the path's face, whichever that is."""
    if path.startswith("/v1/") or path.rstrip("/") in POOLING_PATHS:
        return error_body(error, path, status)
    body: dict[str, Any] = error.as_dict()
    if path == _MCP_PATH:
        refusal = {"code": INVALID_REQUEST, "message": error.published, "data": body}
        body = {"jsonrpc": "2.0", "id": None, "error": refusal}
    return json.dumps(body).encode()


def error_event(error: CwmError, path: str = "") -> bytes:
    """The error as the last event of a stream that cannot continue."""
    if path.startswith(_RESPONSES):
        body = json.loads(error_body(error, path))
        fields = {name: body["error"][name] for name in ("code", "message", "param")}
        event = {"type": "error", **fields, "sequence_number": 0, **body}
        return b"event: error\ndata: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    name = b"event: error\n" if is_anthropic(path) else b""
    return name + b"data: " + error_body(error, path) + b"\n\n"


def status_of(error: CwmError, path: str = "") -> int:
    if isinstance(error, StorageQuotaExceededError):
        return _NO_ROOM
    if error.kind is ErrorKind.UNAVAILABLE and is_anthropic(path):
        return _OVERLOADED
    return STATUS[error.kind]


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path.startswith("/v1/messages")


def error_headers(error: CwmError) -> list[tuple[bytes, bytes]]:
    """Whether to send the request again, which the SDKs of OpenAI and Anthropic obey, and after how many seconds.

    They wait a minute at most; where a retry makes sense later only, they are not to wait at all.
    """
    seconds = error.retry_after_seconds or (1 if error.kind is ErrorKind.UNAVAILABLE else None)
    again = error.retryable and (seconds or 0) <= _MOST_RETRY_AFTER_SECONDS
    headers = [(AGAIN, b"true" if again else b"false")]
    if error.retryable and seconds is not None:
        headers.append((b"retry-after", b"%d" % min(seconds, _MOST_RETRY_AFTER_SECONDS)))
    return headers
