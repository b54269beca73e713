"""Signed access tokens: JSON Web Tokens (RFC 9068)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from cwm.adapters.oauth.claims import Expected
from cwm.adapters.oauth.signing_keys import SigningKeys
from cwm.domain.access_token import AccessToken
from cwm.domain.errors import UnauthenticatedError
from cwm.ports.clock import Clock

_LONGEST_HEADER: Final = 8 * 1024
# An ID token can only have one of the last two types, which some issuers also give access tokens.
_TYPES: Final = frozenset({"at+jwt", "application/at+jwt", "jwt", ""})
_DECODE_ERRORS: Final = (JoseError, ValueError, TypeError, KeyError, RecursionError, OverflowError)


class SignedTokens:
    """Checks tokens with the issuer's public keys only; nothing in a token decides where keys come from."""

    def __init__(
        self, keys: SigningKeys, expected: Expected, algorithms: frozenset[str], clock: Clock
    ) -> None:
        self._keys = keys
        self._expected = expected
        self._algorithms = algorithms
        self._clock = clock
        self._registry = JWSRegistry(algorithms=sorted(algorithms), strict_check_header=False)
        self._registry.max_header_length = _LONGEST_HEADER

    async def checked(self, token: str, header: Mapping[str, Any]) -> AccessToken:
        """Check ``token``; ``header`` is its header, from :func:`header_of`. Raises UnauthenticatedError, CWM-5005."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise UnauthenticatedError(
                "The access token is not signed with an accepted algorithm.", why="algorithm"
            )
        if "crit" in header or str(header.get("typ", "")).lower() not in _TYPES:
            raise UnauthenticatedError("This is not an access token.", why="not_an_access_token")
        if not isinstance(key_id, str | None):
            raise UnauthenticatedError("The access token is malformed.", why="malformed")
        key = await self._keys.find(key_id, algorithm)
        if key is None:
            raise UnauthenticatedError(
                "The access token is signed with an unknown key.", why="unknown_signer"
            )
        try:
            claims = jwt.decode(token, key, algorithms=[algorithm], registry=self._registry).claims
        except _DECODE_ERRORS as error:
            raise UnauthenticatedError("The access token's signature is wrong.", why="forged") from error
        return self._expected.token(claims, self._clock.now())


def header_of(token: str) -> dict[str, Any] | None:
    """The header of a token that has the form of a signed JWT; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        header = json.loads(urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4)))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and "alg" in header else None
