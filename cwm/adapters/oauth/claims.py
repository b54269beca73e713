"""Checks the claims of an access token, signed or introspected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from joserfc.errors import ClaimError, ExpiredTokenError
from joserfc.jwt import JWTClaimsRegistry

from cwm.domain.access_token import AccessToken
from cwm.domain.errors import UnauthenticatedError

_CHECKED: Final = frozenset({"iss", "aud", "exp", "nbf", "iat", "sub"})
_WHY: Final = {
    "aud": ("wrong_audience", "The access token is not for this gateway."),
    "iss": ("wrong_issuer", "The access token is not from the issuer that this gateway trusts."),
    "nbf": ("not_yet_valid", "The access token is not valid yet."),
    "iat": ("not_yet_valid", "The access token is not valid yet."),
    "exp": ("no_expiry", "The access token does not say when it expires."),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """The claims that a token must have. ``audiences`` are this gateway's names; the token must contain one of them."""

    issuer: str
    audiences: tuple[str, ...]
    leeway_seconds: float

    def token(self, claims: Mapping[str, Any], now: datetime, *, issuer_told: bool = True) -> AccessToken:
        """The token of valid claims. Raises UnauthenticatedError.

        Without ``issuer_told`` issuer and expiry may be missing: the issuer itself sent the claims.
        """
        told = dict(claims)
        registry = JWTClaimsRegistry(
            now=math.floor(now.timestamp()),
            leeway=math.floor(self.leeway_seconds),
            iss={"essential": issuer_told, "value": self.issuer},
            aud={"essential": True, "values": list(self.audiences)},
            exp={"essential": issuer_told},
        )
        try:
            registry.validate({name: value for name, value in told.items() if name in _CHECKED})
        except ExpiredTokenError as expired:
            raise UnauthenticatedError("The access token has expired.", why="expired") from expired
        except ClaimError as wrong:
            why, message = _WHY.get(
                str(wrong.claim).split(",")[0], ("malformed", "The access token is malformed.")
            )
            raise UnauthenticatedError(message, why=why) from wrong
        subject, client = told.get("sub"), told.get("client_id", told.get("azp"))
        return AccessToken(
            self.issuer,
            subject if isinstance(subject, str) else None,
            client if isinstance(client, str) else "",
            _scopes(told),
            told,
        )


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Scopes from ``scope`` (RFC 9068) or ``scp`` (some servers), as one string or as a list."""
    told = claims.get("scope", claims.get("scp"))
    if isinstance(told, str):
        return frozenset(told.split())
    if isinstance(told, list):
        return frozenset(name for name in told if isinstance(name, str))
    return frozenset()
