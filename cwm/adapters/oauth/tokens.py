"""Checks access tokens of one authorization server, signed or opaque."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.adapters.oauth.fetch import Fetch
from cwm.adapters.oauth.introspected_tokens import IntrospectedTokens
from cwm.adapters.oauth.signed_tokens import SignedTokens, header_of
from cwm.adapters.oauth.signing_keys import SigningKeys
from cwm.domain.access_token import AccessToken
from cwm.domain.errors import UnauthenticatedError


@dataclass(frozen=True, slots=True)
class OAuthTokens:
    """The port ``AccessTokens``: a token with the form of a JWT is always checked as a JWT, never by introspection."""

    signed: SignedTokens
    opaque: IntrospectedTokens | None
    keys: SigningKeys
    fetch: Fetch

    async def checked(self, token: str) -> AccessToken:
        header = header_of(token)
        if header is not None:
            return await self.signed.checked(token, header)
        if self.opaque is not None:
            return await self.opaque.checked(token)
        raise UnauthenticatedError("The access token is malformed.", why="malformed")

    async def aclose(self) -> None:
        await self.keys.aclose()
        if self.opaque is not None:
            await self.opaque.aclose()
        await self.fetch.aclose()
