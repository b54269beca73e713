"""Who may use the gateway, and how they prove who they are."""

from __future__ import annotations

from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from cwm.settings.fields import Seconds
from cwm.settings.group import Group
from cwm.settings.loopback import on_loopback
from cwm.settings.urls import http_url

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Signatures that are checked with a public key; there is no way to allow `none` or a shared secret."""


class Auth(Group):
    """Who may use the gateway. Nothing set: whoever reaches it, which is why it listens on loopback only."""

    title = "auth"

    public_url: str | None = Field(
        None,
        description="URL that clients reach the gateway at, without /mcp; needed with an issuer. Access tokens are for it.",
    )
    oauth_issuer: str | None = Field(
        None, description="Authorization server whose access tokens are taken: its issuer, to the letter."
    )
    oauth_audience: str = Field(
        "",
        description="Audiences that access tokens may be for, separated by commas; default: the public URL and its /mcp.",
    )
    oauth_jwks_url: str | None = Field(
        None,
        description="Where the issuer's keys are; default: where its metadata says, within its own origin.",
    )
    oauth_algorithms: str = Field(
        "RS256,PS256,ES256,EdDSA",
        description="Signatures that access tokens may have, separated by commas; public keys only.",
    )
    oauth_leeway_seconds: Seconds = Field(
        30, ge=0, le=120, description="How far the clocks of issuer and gateway may be apart."
    )
    oauth_keys_seconds: Seconds = Field(
        86_400,
        ge=300,
        description="For how long the issuer's last known keys go on while it cannot be reached.",
    )
    oauth_introspection_url: str | None = Field(
        None, description="Where to ask what opaque access tokens mean (RFC 7662); unset: they are refused."
    )
    oauth_client_id: str = Field("", description="Client that CWM is known as there.")
    oauth_client_secret: SecretStr | None = Field(None, description="Its secret.")
    oauth_introspection_cache_seconds: Seconds = Field(
        10, ge=0, le=300, description="For how long the answer is good: so long may a revoked token go on."
    )
    oauth_tenant_claim: str | None = Field(
        None,
        description="Claim that names a token's tenant, which is refused without it; unset: CWM_TENANT is everyone's.",
    )
    oauth_scope_prefix: str = Field(
        "", description="What the authorization server puts before each of CWM's scopes, like `api://cwm/`."
    )
    api_keys: bool = Field(
        False, description="Take API keys (`cwm keys create`), alone or beside access tokens."
    )
    public_metrics: bool = Field(
        False, description="Serve /metrics to whoever asks, although all else needs credentials."
    )
    api_key: SecretStr | None = Field(
        None, description="API key or access token that `cwm windows` and other clients send to a gateway."
    )

    @property
    def required(self) -> bool:
        """Whether a request must say whose it is."""
        return self.oauth_issuer is not None or self.api_keys

    def audiences(self) -> tuple[str, ...]:
        given = _listed(self.oauth_audience)
        return given or (f"{self.public_url}/mcp", str(self.public_url), f"{self.public_url}/")

    def algorithms(self) -> frozenset[str]:
        return frozenset(_listed(self.oauth_algorithms))

    @field_validator("public_url")
    @classmethod
    def _base(cls, value: str | None) -> str | None:
        return None if value is None else _plain(_checked(value)).rstrip("/").removesuffix("/mcp")

    @field_validator("oauth_issuer")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        return None if value is None else _plain(value)

    @field_validator("oauth_issuer", "oauth_jwks_url", "oauth_introspection_url")
    @classmethod
    def _secure(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if urlsplit(_checked(value)).scheme == "http" and not on_loopback(urlsplit(value).hostname or ""):
            raise ValueError("must be an https:// URL, unless it is on this machine")
        return value

    @field_validator("oauth_algorithms")
    @classmethod
    def _asymmetric(cls, value: str) -> str:
        if not _listed(value) or not set(_listed(value)) <= ALGORITHMS:
            raise ValueError(f"must be some of {', '.join(sorted(ALGORITHMS))}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.oauth_issuer is not None and self.public_url is None:
            raise ValueError("CWM_OAUTH_ISSUER needs CWM_PUBLIC_URL, which access tokens are for")
        if self.oauth_introspection_url is not None:
            if self.oauth_issuer is None:
                raise ValueError("CWM_OAUTH_INTROSPECTION_URL needs CWM_OAUTH_ISSUER")
            if not self.oauth_client_id or self.oauth_client_secret is None:
                raise ValueError(
                    "CWM_OAUTH_INTROSPECTION_URL needs CWM_OAUTH_CLIENT_ID and CWM_OAUTH_CLIENT_SECRET"
                )
        return self


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in (each.strip() for each in text.split(",")) if part)


def _checked(url: str) -> str:
    parts = http_url(url)
    if parts.username or parts.password:
        raise ValueError("must have no user in it")
    return url


def _plain(url: str) -> str:
    if "?" in url or "#" in url:
        raise ValueError("must have no query and no fragment")
    return url
