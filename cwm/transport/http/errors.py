"""Coded errors in the format that OpenAI clients expect."""

from __future__ import annotations

import json
from typing import Any, Final

from cwm.domain.errors import CwmError, ErrorKind, LimitError

STATUS: Final[dict[ErrorKind, int]] = {
    ErrorKind.INVALID: 400,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.LIMITED: 429,
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
}
_RETRY_AFTER: Final = (b"retry-after", b"1")


def error_body(error: CwmError) -> bytes:
    """``{"error": {message, type, param, code, retryable, context}}``; ``param`` names a field or is null.

    For an exceeded limit, ``retry_after_seconds`` is added beside ``error``.
    """
    described = error.as_dict()
    shape: dict[str, Any] = {
        "message": described["message"],
        "type": _TYPES.get(error.kind, "server_error"),
        "param": described["context"].get("field"),
        "code": described["code"],
        "retryable": described["retryable"],
        "context": described["context"],
    }
    body: dict[str, Any] = {"error": shape}
    if isinstance(error, LimitError):
        body["retry_after_seconds"] = error.retry_after_seconds
    return json.dumps(body, separators=(",", ":")).encode()


def error_event(error: CwmError) -> bytes:
    """The error as the last event of a stream that cannot continue."""
    return b"data: " + error_body(error) + b"\n\n"


def status_of(error: CwmError) -> int:
    return STATUS[error.kind]


def error_headers(error: CwmError) -> list[tuple[bytes, bytes]]:
    if isinstance(error, LimitError):
        return [(b"retry-after", b"%d" % error.retry_after_seconds)]
    return [_RETRY_AFTER] if error.kind is ErrorKind.UNAVAILABLE else []
