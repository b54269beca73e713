"""The public error codes of the contract, one class each.

An error carries a stable ``code``, a ``kind`` that transports map to their own status, whether a retry can help,
and a ``context`` of plain values. It never carries a prompt, a token or a secret.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, ClassVar, Self

from cwm.domain.addresses import without_addresses, without_addresses_in
from cwm.domain.injection import Injection, injection_of


class ErrorKind(StrEnum):
    """What a failure means to a caller, whichever face the call came through."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    STORAGE = "storage"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    LIMITED = "limited"
    TOO_LARGE = "too_large"
    INTERNAL = "internal"


_OF_THE_INSTALLATION = frozenset(
    {ErrorKind.STORAGE, ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL}
)


class CwmError(Exception):
    """Base of all coded errors: ``{code, message, retryable, context}`` on the wire."""

    code: ClassVar[str] = "CWM-9001"
    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    retryable: bool = False
    injection: Injection | None = None
    """The injection that the refused value resembled. For the audit log only: callers do not see it."""
    audited: bool = False
    """Whether the audit log has the refusal, which is recorded once."""
    retry_after_seconds: int | None = None
    """After how many seconds a retry may succeed, at least 1; None if nobody knows."""
    recorded: int | None = None
    """Token count of the session after a turn that failed midway and was recorded all the same; None if it was not."""

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = context

    def refusing(self, value: str) -> Self:
        """Note which injection the refused ``value`` resembles; the value itself is not stored."""
        self.injection = injection_of(value)
        return self

    def tell_recorded(self, session_id: str) -> None:
        """If the failed turn was recorded, say so and forbid a retry, which would record it twice."""
        if self.recorded is None:
            return
        self.retryable = False
        self.message += (
            f" The partial answer is kept in session '{session_id}', after its prompt: continue from there."
        )
        self.context |= {"session_id": session_id, "recorded": True, "token_count": self.recorded}

    @property
    def published(self) -> str:
        """The message without the addresses and paths of this installation, which the log has and callers do not need."""
        return without_addresses(self.message) if self.kind in _OF_THE_INSTALLATION else self.message

    @property
    def published_context(self) -> dict[str, Any]:
        """The same of the context, whose values are JSON types."""
        if self.kind not in _OF_THE_INSTALLATION:
            return self.context
        context: dict[str, Any] = without_addresses_in(self.context)
        return context

    def as_dict(self) -> dict[str, Any]:
        """The published error object."""
        return {
            "code": self.code,
            "message": self.published,
            "retryable": self.retryable,
            "context": self.published_context,
        }


class InvalidSessionIdError(CwmError):
    code, kind = "CWM-1001", ErrorKind.INVALID


class InvalidWindowNameError(CwmError):
    code, kind = "CWM-1002", ErrorKind.INVALID


class InvalidParameterError(CwmError):
    code, kind = "CWM-1003", ErrorKind.INVALID


class ModelDoesNotGenerateError(InvalidParameterError):
    """Of a model that embeds, scores, ranks or classifies, which was asked for a turn or a session."""


class ExclusiveParametersError(CwmError):
    """Of these parameters a request may have one."""

    code, kind = "CWM-1004", ErrorKind.INVALID


class ContextTooLargeError(CwmError):
    """A request goes on from more than a gateway holds in memory for one; the engine was not asked."""

    code, kind = "CWM-1005", ErrorKind.TOO_LARGE


class SessionNotFoundError(CwmError):
    code, kind = "CWM-2001", ErrorKind.NOT_FOUND


class WindowNotFoundError(CwmError):
    code, kind = "CWM-2002", ErrorKind.NOT_FOUND


class BlockNotFoundError(CwmError):
    """Of the first contract, and never raised: a missing block is computed again (decision 0041)."""

    code, kind, retryable = "CWM-2003", ErrorKind.NOT_FOUND, True


class AgentSessionNotFoundError(CwmError):
    """The agent session does not exist or belongs to another principal."""

    code, kind = "CWM-2004", ErrorKind.NOT_FOUND


class ResultNotFoundError(CwmError):
    """The stored result is unknown, expired, or another's and not shared."""

    code, kind = "CWM-2005", ErrorKind.NOT_FOUND


class SnapshotNotFoundError(CwmError):
    """A scope of shared context has no snapshot of this label."""

    code, kind = "CWM-2006", ErrorKind.NOT_FOUND


class TurnNotFoundError(CwmError):
    """The turn does not exist, has no answer yet, or is of another session."""

    code, kind = "CWM-2007", ErrorKind.NOT_FOUND


class ResponseNotFoundError(CwmError):
    """The response, the conversation, or an item of one, does not exist, is somebody else's or was deleted."""

    code, kind = "CWM-2008", ErrorKind.NOT_FOUND


class PreviousResponseNotFoundError(CwmError):
    """The response that a request goes on from does not exist, is somebody else's or was deleted."""

    code, kind = "CWM-2009", ErrorKind.INVALID


class UpstreamTaskNotFoundError(CwmError):
    """The task of an upstream is unknown, expired or another's."""

    code, kind = "CWM-2010", ErrorKind.NOT_FOUND


class SessionAlreadyExistsError(CwmError):
    code, kind = "CWM-3001", ErrorKind.CONFLICT


class SessionNotActiveError(CwmError):
    code, kind = "CWM-3002", ErrorKind.CONFLICT


class TurnInFlightError(SessionNotActiveError):
    """The session is live, and a turn of it runs: the same request succeeds once the turn has ended."""

    retryable = True


class SessionMovedOnError(SessionNotActiveError):
    """The session changed since it was read: another turn was asked, or it ended."""


class SessionMovingError(SessionNotActiveError):
    """A move of the session to another engine was faster."""

    retryable = True


class WindowAlreadyExistsError(CwmError):
    code, kind = "CWM-3003", ErrorKind.CONFLICT


class WindowInUseError(CwmError):
    """Other windows or sessions depend on the window: deleting it needs ``force``. Not in the first contract."""

    code, kind = "CWM-3004", ErrorKind.CONFLICT


class WindowIncompatibleError(CwmError):
    """The served model reads the window's tokens differently than the model that made it. Not in the first contract."""

    code, kind = "CWM-3005", ErrorKind.CONFLICT


class TooManyAgentSessionsError(CwmError):
    """The process already serves its maximum number of agent sessions, and all of them are busy."""

    code, kind, retryable = "CWM-3006", ErrorKind.CONFLICT, True


class ContextConflictError(CwmError):
    """The key is immutable, or not at the version that the write expects; nothing was written."""

    code, kind = "CWM-3007", ErrorKind.CONFLICT


class UnrelatedTurnError(CwmError):
    """The request shares nothing with the window that its session was thawed from; the session was not changed."""

    code, kind = "CWM-3008", ErrorKind.CONFLICT


class TurnTagExistsError(CwmError):
    """The tag names another turn; it has to be moved."""

    code, kind = "CWM-3009", ErrorKind.CONFLICT


class ConversationLockedError(CwmError):
    """A response is being added to the conversation. OpenAI answers 400."""

    code, kind, retryable = "CWM-3010", ErrorKind.INVALID, True


class EngineIncompatibleError(CwmError):
    """The engine does not serve the session's model, or cannot use its KV: a session moves within one deployment."""

    code, kind = "CWM-3011", ErrorKind.CONFLICT


class StorageWriteError(CwmError):
    code, kind, retryable = "CWM-4001", ErrorKind.STORAGE, True


class StorageReadError(CwmError):
    code, kind, retryable = "CWM-4002", ErrorKind.STORAGE, True


class StorageQuotaExceededError(CwmError):
    code, kind = "CWM-4003", ErrorKind.STORAGE


class StorageCorruptionError(CwmError):
    code, kind = "CWM-4004", ErrorKind.STORAGE


class StorageKeyError(CwmError):
    """What is stored is encrypted with a registry key that the gateway does not have."""

    code, kind = "CWM-4005", ErrorKind.STORAGE


class StoredTooLargeError(CwmError):
    """What is stored takes more memory than one read may take."""

    code, kind = "CWM-4006", ErrorKind.TOO_LARGE


class EngineConnectionError(CwmError):
    """The engine (vLLM or LMCache) cannot be reached."""

    code, kind, retryable = "CWM-5001", ErrorKind.UNAVAILABLE, True


class EngineResponseError(CwmError):
    """The engine sent a response that CWM cannot read."""

    code, kind, retryable = "CWM-5002", ErrorKind.UNAVAILABLE, True


class UpstreamUnavailableError(CwmError):
    """An upstream MCP server cannot be reached; the request was not carried out."""

    code, kind, retryable = "CWM-5003", ErrorKind.UNAVAILABLE, True


class OutcomeUnknownError(CwmError):
    """An upstream MCP server was lost during a call that must not be repeated.

    It may or may not have been carried out.
    """

    code, kind = "CWM-5004", ErrorKind.UNAVAILABLE


class AuthorityUnavailableError(CwmError):
    """The authorization server cannot be reached to verify an access token."""

    code, kind, retryable = "CWM-5005", ErrorKind.UNAVAILABLE, True


class UpstreamRejectionError(CwmError):
    """An upstream MCP server rejects the request, or the credentials, with an HTTP status. A retry changes nothing."""

    code, kind = "CWM-5006", ErrorKind.UNAVAILABLE


class EngineTimeoutError(CwmError):
    code, kind, retryable = "CWM-6001", ErrorKind.TIMEOUT, True


class LimitError(CwmError):
    """The caller exceeds a limit for now."""

    kind, retryable = ErrorKind.LIMITED, True
    error: ClassVar[str] = "Limit exceeded"
    retry_after_seconds: int

    def __init__(self, message: str, *, retry_after: float, **context: Any) -> None:
        self.retry_after_seconds = max(1, math.ceil(retry_after))
        super().__init__(message, **context, retry_after_seconds=self.retry_after_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Adds the two fields that the contract defines for requests over a limit."""
        return {
            **super().as_dict(),
            "error": self.error,
            "retry_after_seconds": self.retry_after_seconds,
        }


class RateLimitError(LimitError):
    """Too many requests in a period. The refused request itself was not counted."""

    code, error = "CWM-7001", "Rate limit exceeded"


class ConcurrencyLimitError(LimitError):
    """Too many requests are running at once."""

    code, error = "CWM-7002", "Concurrency limit exceeded"


class TokenBudgetError(LimitError):
    """The token budget of the period is used up; the engine was not called."""

    code, error = "CWM-7003", "Token budget exceeded"


class InternalError(CwmError):
    code, kind = "CWM-9001", ErrorKind.INTERNAL


class SecurityError(CwmError):
    code, kind = "CWM-9002", ErrorKind.FORBIDDEN


class UnauthenticatedError(SecurityError):
    """The request does not identify a caller.

    ``why`` is a word or two for the audit log; the caller does not see it.
    """

    kind = ErrorKind.UNAUTHENTICATED

    def __init__(self, message: str, *, why: str = "no_credentials") -> None:
        super().__init__(message, reason="unauthenticated")
        self.why = why


class InsufficientScopeError(SecurityError):
    """The caller is known but lacks a scope that the request needs."""
