"""Every way CWM says no: the public codes of the contract, one class each.

An error carries a stable ``code``, a ``kind`` that transports map to their own status, whether a
retry can help, and a ``context`` of plain values. It never carries a prompt, a token or a secret.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, ClassVar, Self

from cwm.domain.injection import Injection, injection_of


class ErrorKind(StrEnum):
    """What a failure means to a caller, whichever face it came through."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    STORAGE = "storage"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    LIMITED = "limited"
    INTERNAL = "internal"


class CwmError(Exception):
    """Base of all coded errors: ``{code, message, retryable, context}`` on the wire."""

    code: ClassVar[str] = "CWM-9001"
    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    retryable: bool = False
    injection: Injection | None = None
    """What the value that was refused looked like. For the audit log: callers are not told."""
    recorded: int | None = None
    """Tokens that the session has after a turn that failed half-way and is part of it; None where it is not."""

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = context

    def refusing(self, value: str) -> Self:
        """Note what the refused ``value`` looked like; the value itself is not kept."""
        self.injection = injection_of(value)
        return self

    def tell_recorded(self, session_id: str) -> None:
        """Say that what came of the turn is kept, if it is: sent again it would be there twice."""
        if self.recorded is None:
            return
        self.retryable = False
        self.message += f" What came of the answer is kept in session '{session_id}', after what it answers: go on from there."
        self.context |= {"session_id": session_id, "recorded": True, "token_count": self.recorded}

    def as_dict(self) -> dict[str, Any]:
        """The published error object; values of ``context`` are JSON types."""
        return {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "context": self.context,
        }


class InvalidSessionIdError(CwmError):
    code, kind = "CWM-1001", ErrorKind.INVALID


class InvalidWindowNameError(CwmError):
    code, kind = "CWM-1002", ErrorKind.INVALID


class InvalidParameterError(CwmError):
    code, kind = "CWM-1003", ErrorKind.INVALID


class SessionNotFoundError(CwmError):
    code, kind = "CWM-2001", ErrorKind.NOT_FOUND


class WindowNotFoundError(CwmError):
    code, kind = "CWM-2002", ErrorKind.NOT_FOUND


class BlockNotFoundError(CwmError):
    code, kind, retryable = "CWM-2003", ErrorKind.NOT_FOUND, True


class AgentSessionNotFoundError(CwmError):
    """No such agent session, or another principal's."""

    code, kind = "CWM-2004", ErrorKind.NOT_FOUND


class ResultNotFoundError(CwmError):
    """No such stored result: unknown, expired, or another's that is not shared."""

    code, kind = "CWM-2005", ErrorKind.NOT_FOUND


class SnapshotNotFoundError(CwmError):
    """No such snapshot of a scope of shared context."""

    code, kind = "CWM-2006", ErrorKind.NOT_FOUND


class SessionAlreadyExistsError(CwmError):
    code, kind = "CWM-3001", ErrorKind.CONFLICT


class SessionNotActiveError(CwmError):
    code, kind = "CWM-3002", ErrorKind.CONFLICT


class WindowAlreadyExistsError(CwmError):
    code, kind = "CWM-3003", ErrorKind.CONFLICT


class WindowInUseError(CwmError):
    """Not in the first contract: a window that others depend on is deleted only with ``force``."""

    code, kind = "CWM-3004", ErrorKind.CONFLICT


class WindowIncompatibleError(CwmError):
    """Not in the first contract: the served model reads the window's tokens otherwise than they were meant."""

    code, kind = "CWM-3005", ErrorKind.CONFLICT


class TooManyAgentSessionsError(CwmError):
    """As many agent sessions are busy as this process may hold."""

    code, kind, retryable = "CWM-3006", ErrorKind.CONFLICT, True


class ContextConflictError(CwmError):
    """A key is immutable, or not at the version that a write was meant for; nothing was written."""

    code, kind = "CWM-3007", ErrorKind.CONFLICT


class StorageWriteError(CwmError):
    code, kind, retryable = "CWM-4001", ErrorKind.STORAGE, True


class StorageReadError(CwmError):
    code, kind, retryable = "CWM-4002", ErrorKind.STORAGE, True


class StorageQuotaExceededError(CwmError):
    code, kind = "CWM-4003", ErrorKind.STORAGE


class StorageCorruptionError(CwmError):
    code, kind = "CWM-4004", ErrorKind.STORAGE


class EngineConnectionError(CwmError):
    """The engine (vLLM or LMCache) cannot be reached."""

    code, kind, retryable = "CWM-5001", ErrorKind.UNAVAILABLE, True


class EngineResponseError(CwmError):
    """The engine answered with something that is not an answer."""

    code, kind, retryable = "CWM-5002", ErrorKind.UNAVAILABLE, True


class UpstreamUnavailableError(CwmError):
    """An upstream MCP server cannot be reached; what was asked of it was not done."""

    code, kind, retryable = "CWM-5003", ErrorKind.UNAVAILABLE, True


class OutcomeUnknownError(CwmError):
    """An upstream MCP server went away during a call that may not be repeated: it may or may not be done."""

    code, kind = "CWM-5004", ErrorKind.UNAVAILABLE


class AuthorityUnavailableError(CwmError):
    """The authorization server cannot be asked about an access token, so that nobody knows whether it is good."""

    code, kind, retryable = "CWM-5005", ErrorKind.UNAVAILABLE, True


class EngineTimeoutError(CwmError):
    code, kind, retryable = "CWM-6001", ErrorKind.TIMEOUT, True


class LimitError(CwmError):
    """A caller asks for more than it may for now. ``retry_after_seconds`` is a whole number from 1 on."""

    kind, retryable = ErrorKind.LIMITED, True
    error: ClassVar[str] = "Limit exceeded"

    def __init__(self, message: str, *, retry_after: float, **context: Any) -> None:
        self.retry_after_seconds = max(1, math.ceil(retry_after))
        super().__init__(message, **context, retry_after_seconds=self.retry_after_seconds)

    def as_dict(self) -> dict[str, Any]:
        """With the two fields that the contract has for requests over a limit."""
        return {
            **super().as_dict(),
            "error": self.error,
            "retry_after_seconds": self.retry_after_seconds,
        }


class RateLimitError(LimitError):
    """More requests than may be made in a time. It was not counted."""

    code, error = "CWM-7001", "Rate limit exceeded"


class ConcurrencyLimitError(LimitError):
    """As many requests are being answered as may be at once."""

    code, error = "CWM-7002", "Concurrency limit exceeded"


class TokenBudgetError(LimitError):
    """The tokens of a time are used up; the engine was not asked."""

    code, error = "CWM-7003", "Token budget exceeded"


class InternalError(CwmError):
    code, kind = "CWM-9001", ErrorKind.INTERNAL


class SecurityError(CwmError):
    code, kind = "CWM-9002", ErrorKind.FORBIDDEN


class UnauthenticatedError(SecurityError):
    """Nobody in particular asks. ``why`` is for the audit log, one word or two, and is not told to the caller."""

    kind = ErrorKind.UNAUTHENTICATED

    def __init__(self, message: str, *, why: str = "no_credentials") -> None:
        super().__init__(message, reason="unauthenticated")
        self.why = why


class InsufficientScopeError(SecurityError):
    """Somebody asks for what they may not do."""
