"""Verifies OAuth access tokens."""

from __future__ import annotations

from typing import Protocol

from cwm.domain.access_token import AccessToken


class AccessTokens(Protocol):
    async def checked(self, token: str) -> AccessToken:
        """Verify issuer, audience, signature and times of ``token`` and return its content.

        Raises UnauthenticatedError for an invalid token, CWM-5005 when the authorization server is needed and
        unavailable. Returns within seconds, whatever the authorization server does.
        """
        ...

    async def aclose(self) -> None: ...
