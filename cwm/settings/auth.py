"""Settings of authentication: who may use the gateway, and how callers prove their identity."""

from __future__ import annotations

from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from cwm.settings.fields import Group, Seconds
from cwm.settings.origins import split
from cwm.settings.urls import http_url, on_loopback

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Signature algorithms verified with a public key. `none` and shared secrets cannot be allowed."""


class Auth(Group):
    """Who may use the gateway.

    Without any of these settings, everybody who can reach it; so it then listens on loopback only.
    """

    public_url: str | None = Field(
        None,
        description="URL at which clients reach the gateway, without /mcp; required with an issuer. Access tokens are issued for it.",
    )
    oauth_issuer: str | None = Field(
        None,
        description="Issuer of the authorization server whose access tokens are accepted; compared exactly.",
    )
    oauth_audience: str = Field(
        "",
        description="Accepted audiences of access tokens, comma-separated; default: the public URL and its /mcp.",
    )
    oauth_jwks_url: str | None = Field(
        None,
        description="URL of the issuer's keys; default: the one in its metadata, which must be on the issuer's own origin.",
    )
    oauth_algorithms: str = Field(
        "RS256,PS256,ES256,EdDSA",
        description="Accepted signature algorithms of access tokens, comma-separated; public-key algorithms only.",
    )
    oauth_leeway_seconds: Seconds = Field(
        30, ge=0, le=120, description="Tolerated difference between the clocks of issuer and gateway."
    )
    oauth_keys_seconds: Seconds = Field(
        86_400,
        ge=300,
        description="How long the issuer's last known keys stay valid while it cannot be reached.",
    )
    oauth_introspection_url: str | None = Field(
        None,
        description="Introspection endpoint for opaque access tokens (RFC 7662); unset: they are refused.",
    )
    oauth_client_id: str = Field("", description="CWM's client id at the introspection endpoint.")
    oauth_client_secret: SecretStr | None = Field(
        None, description="CWM's client secret at the introspection endpoint."
    )
    oauth_introspection_cache_seconds: Seconds = Field(
        10,
        ge=0,
        le=300,
        description="How long an introspection result is cached; a revoked token keeps working that long.",
    )
    oauth_tenant_claim: str | None = Field(
        None,
        description="Claim that names a token's tenant; tokens without it are refused. Unset: every caller belongs to CWM_TENANT.",
    )
    oauth_workspace_claim: str | None = Field(
        None,
        description="Claim that names the workspaces that a token's caller is a member of: a list, or names with spaces between.",
    )
    oauth_scope_prefix: str = Field(
        "",
        description="Prefix that the authorization server puts before each of CWM's scopes, such as `api://cwm/`.",
    )
    api_keys: bool = Field(
        False, description="Accept API keys (`cwm keys create`), alone or in addition to access tokens."
    )
    console_client_id: str | None = Field(
        None,
        description="CWM's client id at the issuer, for people who sign in to the console; unset: nobody signs in there. Its redirect "
        "URI is CWM_PUBLIC_URL and /console/sign-in/return.",
    )
    console_client_secret: SecretStr | None = Field(
        None, description="The secret of that client; unset: it is a public client, with PKCE alone."
    )
    console_scopes: str = Field(
        "",
        description="What the console asks the issuer for, with spaces between; default: each of CWM's scopes, after the prefix.",
    )
    public_metrics: bool = Field(
        False, description="Serve /metrics without credentials, although everything else needs them."
    )
    api_key: SecretStr | None = Field(
        None,
        description="API key or access token that `cwm windows` and other client commands send to a gateway.",
    )

    @property
    def required(self) -> bool:
        """Whether requests must be authenticated."""
        return self.oauth_issuer is not None or self.api_keys

    @property
    def signs_in(self) -> bool:
        """Whether a person with a browser can say who they are."""
        return self.api_keys or self.console_client_id is not None

    def audiences(self) -> tuple[str, ...]:
        configured_audiences: tuple[str, ...] = split(self.oauth_audience)
        return configured_audiences or (f"{self.public_url}/mcp", str(self.public_url), f"{self.public_url}/")

    def algorithms(self) -> frozenset[str]:
        return frozenset(split(self.oauth_algorithms))

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
        if not split(value) or not set(split(value)) <= ALGORITHMS:
            raise ValueError(f"must be some of {', '.join(sorted(ALGORITHMS))}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.oauth_issuer is not None and self.public_url is None:
            raise ValueError("CWM_OAUTH_ISSUER needs CWM_PUBLIC_URL, the audience of access tokens")
        if self.console_client_id is not None and self.oauth_issuer is None:
            raise ValueError("CWM_CONSOLE_CLIENT_ID needs CWM_OAUTH_ISSUER")
        if self.oauth_introspection_url is not None:
            if self.oauth_issuer is None:
                raise ValueError("CWM_OAUTH_INTROSPECTION_URL needs CWM_OAUTH_ISSUER")
            if not self.oauth_client_id or self.oauth_client_secret is None:
                raise ValueError(
                    "CWM_OAUTH_INTROSPECTION_URL needs CWM_OAUTH_CLIENT_ID and CWM_OAUTH_CLIENT_SECRET"
                )
        return self


def _checked(url: str) -> str:
    parts = http_url(url)
    if parts.username or parts.password:
        raise ValueError("must not contain a user or a password")
    return url


def _plain(url: str) -> str:
    if "?" in url or "#" in url:
        raise ValueError("must not contain a query or a fragment")
    return url
