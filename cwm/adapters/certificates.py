"""Describes why a TLS connection to a peer failed."""

from __future__ import annotations

import ssl
from typing import Final

_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}
_BROKEN_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_BY_TLS_ITSELF: Final = "SSL"

SPEAKS_NO_TLS: Final = "speaks no TLS"


def fault(error: BaseException) -> str | None:
    """The predicate of a sentence about the peer, such as 'speaks no TLS'; None if ``error`` is not a TLS error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _BROKEN_OFF):
            return _of(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def _of(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        message = str(getattr(error, "verify_message", "") or error.reason).rstrip(".")
        return f"has a certificate that is not accepted: {message}"
    reason = error.reason or "no reason given"
    if reason in _NO_TLS:
        return SPEAKS_NO_TLS
    text = reason.replace("_", " ").lower()
    if error.library != _BY_TLS_ITSELF or reason.startswith("PEM"):
        return f"cannot be asked over TLS: a file of certificates or keys cannot be used ({text})"
    return f"cannot be asked over TLS: {text}"
