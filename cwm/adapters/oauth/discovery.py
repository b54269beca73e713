"""Finds an issuer's metadata, and the URL of its keys, by OpenID Connect Discovery, otherwise by RFC 8414."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from cwm.adapters.oauth.fetch import Fetch
from cwm.domain.errors import AuthorityUnavailableError

_OPENID: Final = "/.well-known/openid-configuration"
_OAUTH: Final = "/.well-known/oauth-authorization-server"


async def metadata_of(issuer: str, fetch: Fetch) -> dict[str, Any]:
    """The metadata that names the issuer itself. Raises CWM-5005."""
    try:
        metadata = await fetch.get(issuer.rstrip("/") + _OPENID)
    except AuthorityUnavailableError:
        parts = urlsplit(issuer)
        metadata = await fetch.get(f"{origin(issuer)}{_OAUTH}{parts.path.rstrip('/')}")
    if metadata.get("issuer") != issuer:
        raise AuthorityUnavailableError("The authorization server's metadata names another issuer.")
    return metadata


async def jwks_url(issuer: str, fetch: Fetch) -> str:
    """The ``jwks_uri``, if it has the issuer's own origin; only a setting may name another origin. Raises CWM-5005."""
    metadata = await metadata_of(issuer, fetch)
    url = metadata.get("jwks_uri")
    if not isinstance(url, str) or origin(url) != origin(issuer):
        raise AuthorityUnavailableError(
            "The authorization server's metadata has no jwks_uri within its own origin: set CWM_OAUTH_JWKS_URL."
        )
    return url


def origin(url: str) -> str:
    """Scheme, host and port; a string that equals no URL's origin if ``url`` is not a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return ""
    plain = {"https": 443, "http": 80}.get(parts.scheme) == port
    return f"{parts.scheme}://{parts.hostname}" + ("" if plain else f":{port}")
