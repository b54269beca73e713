"""What is wrong with a certificate that TLS did not accept."""

from __future__ import annotations

import ssl


def refusal(failed: BaseException) -> str | None:
    """Such as 'self-signed certificate', when a peer's certificate is what ``failed`` comes from."""
    found: BaseException | None = failed
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return str(getattr(found, "verify_message", "") or found.reason).rstrip(".")
        found = found.__cause__ or found.__context__
    return None
