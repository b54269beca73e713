"""Whether an access token is good, and what it says."""

from __future__ import annotations

from typing import Protocol

from cwm.domain.access_token import AccessToken


class AccessTokens(Protocol):
    async def checked(self, token: str) -> AccessToken:
        """What the token says, when its issuer, its audience, its signature and its times are right.

        Raises UnauthenticatedError for one that is not good, CWM-5005 when that cannot be found out now. Answers
        within seconds whatever the authorization server does.
        """
        ...

    async def aclose(self) -> None: ...
