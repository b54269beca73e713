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

    def token(self, claims: Mapping[str, Any], now: datetime, *, issuer_required: bool = True) -> AccessToken:
        """The token of valid claims. Raises UnauthenticatedError.

        Without ``issuer_required`` issuer and expiry may be missing: the issuer itself sent the claims.
        """
        contents = dict(claims)
        registry = JWTClaimsRegistry(
            now=math.floor(now.timestamp()),
            leeway=math.floor(self.leeway_seconds),
            iss={"essential": issuer_required, "value": self.issuer},
            aud={"essential": True, "values": list(self.audiences)},
            exp={"essential": issuer_required},
        )
        try:
            registry.validate({name: value for name, value in contents.items() if name in _CHECKED})
        except ExpiredTokenError as error:
            raise UnauthenticatedError("The access token has expired.", why="expired") from error
        except ClaimError as error:
            why, message = _WHY.get(
                str(error.claim).split(",")[0], ("malformed", "The access token is malformed.")
            )
            raise UnauthenticatedError(message, why=why) from error
        if contents.get("cnf") is not None:
            # RFC 7800: valid only with a proof of the key (mTLS, DPoP), which a bearer does not give.
            raise UnauthenticatedError(
                "The access token is bound to a key, and this gateway accepts bearer tokens only.",
                why="bound_to_a_key",
            )
        subject, client = contents.get("sub"), contents.get("client_id", contents.get("azp"))
        return AccessToken(
            self.issuer,
            subject if isinstance(subject, str) else None,
            client if isinstance(client, str) else "",
            _scopes(contents),
            contents,
        )


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Scopes from ``scope`` (RFC 9068) or ``scp`` (some servers), as one string or as a list."""
    value = claims.get("scope", claims.get("scp"))
    if isinstance(value, str):
        return frozenset(value.split())
    if isinstance(value, list):
        return frozenset(name for name in value if isinstance(name, str))
    return frozenset()
