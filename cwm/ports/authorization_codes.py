"""Signs people in at an authorization server: OAuth's authorization code with PKCE (RFC 6749, RFC 7636)."""

from __future__ import annotations

from typing import Protocol


class AuthorizationCodes(Protocol):
    async def address(self, *, state: str, verifier: str, scopes: str | None = None) -> str:
        """Where a browser is sent to sign in. ``scopes``: those to ask for, with spaces between; None: all. CWM-5005."""

    async def access_token(self, *, code: str, verifier: str, issuer: str | None) -> str:
        """The token for what the browser came back with. ``issuer``: the one that it named (RFC 9207).

        Raises UnauthenticatedError if the server, or the issuer, refuses; CWM-5005 if it does not answer.
        """
