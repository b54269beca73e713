"""Sign-in of people at the issuer: where a browser is sent, and what the code that it brings back is exchanged for."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from cwm.adapters.oauth.discovery import metadata_of
from cwm.adapters.oauth.fetch import Fetch
from cwm.domain.errors import AuthorityUnavailableError, UnauthenticatedError
from cwm.ports.clock import Clock
from cwm.settings.urls import on_loopback

_METADATA_SECONDS: Final = 3600.0
_REFUSED: Final = frozenset({400, 401})
_BASIC: Final = "client_secret_basic"


@dataclass(slots=True, eq=False, repr=False)
class IssuerCodes:
    """The port ``AuthorizationCodes``. ``secret`` is None for a public client; ``back`` is where the server sends browsers.

    ``resource`` is what the token is for (RFC 8707); ``scopes`` are asked for where a sign-in does not name fewer.
    """

    issuer: str
    client_id: str
    secret: str | None
    back: str
    resource: str
    scopes: str
    fetch: Fetch
    clock: Clock
    _metadata: Mapping[str, Any] = field(default_factory=dict, init=False)
    _fetched: float | None = field(default=None, init=False)

    async def address(self, *, state: str, verifier: str, scopes: str | None = None) -> str:
        challenge = base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.back,
            "scope": scopes or self.scopes,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": self.resource,
        }
        url = await self._endpoint("authorization_endpoint")
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}"

    async def access_token(self, *, code: str, verifier: str, issuer: str | None) -> str:
        url = await self._endpoint("token_endpoint")
        if issuer not in {None, self.issuer} or (
            issuer is None and self._metadata.get("authorization_response_iss_parameter_supported") is True
        ):
            raise UnauthenticatedError("Another authorization server answered.", why="wrong_issuer")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.back,
            "code_verifier": verifier,
            "resource": self.resource,
        }
        answer = await self.fetch.post(url, form | self._in_form(), self._basic(), also=_REFUSED)
        token, kind = answer.get("access_token"), answer.get("token_type")
        if not isinstance(token, str) or not isinstance(kind, str) or kind.lower() != "bearer":
            raise UnauthenticatedError(
                "The authorization server gave no access token for this sign-in.", why="no_token"
            )
        return token

    def _basic(self) -> tuple[str, str] | None:
        """Id and secret are encoded as RFC 6749, 2.3.1 says."""
        if self.secret is None or not self._takes_basic():
            return None
        return quote(self.client_id, safe=""), quote(self.secret, safe="")

    def _in_form(self) -> dict[str, str]:
        if self.secret is None:
            return {"client_id": self.client_id}
        return {} if self._takes_basic() else {"client_id": self.client_id, "client_secret": self.secret}

    def _takes_basic(self) -> bool:
        methods = self._metadata.get("token_endpoint_auth_methods_supported")
        return not isinstance(methods, list) or _BASIC in methods

    async def _endpoint(self, name: str) -> str:
        now = self.clock.monotonic()
        if self._fetched is None or now - self._fetched > _METADATA_SECONDS:
            self._metadata = await metadata_of(self.issuer, self.fetch)
            self._fetched = now
        url = self._metadata.get(name)
        if not isinstance(url, str) or not _is_safe(url):
            raise AuthorityUnavailableError(f"The authorization server's metadata has no safe {name}.")
        return url


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    is_secure = parts.scheme == "https" or (parts.scheme == "http" and on_loopback(parts.hostname or ""))
    return is_secure and bool(parts.hostname) and not parts.fragment and url.isprintable()
