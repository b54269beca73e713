"""Authentication: finds the principal to whom the credentials of a request belong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.access import granted
from cwm.domain.access_token import AccessToken
from cwm.domain.api_key import MARK, taken_apart
from cwm.domain.errors import UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.domain.visibility import WORKSPACE_NAME
from cwm.ports.access_tokens import AccessTokens
from cwm.ports.api_keys import ApiKeys
from cwm.ports.clock import Clock
from cwm.services.access.key_uses import KeyUses

MAX_CREDENTIAL_CHARACTERS: Final = 16 * 1024

_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)", re.ASCII)
_TENANT: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_LONGEST_NAME: Final = 255
_MOST_WORKSPACES: Final = 256


@dataclass(frozen=True, slots=True)
class Authentication:
    """``cwm.ports.identity.Identity`` for bearer tokens: access tokens of an authorization server, and CWM's API keys.

    Subjects of different sources never collide: ``<issuer>#<sub>``, ``<issuer>?client=<client_id>`` for a token without
    ``sub``, ``key:<name>`` for an API key. An issuer contains neither ``#`` nor ``?``.
    """

    tenant: str
    clock: Clock
    tokens: AccessTokens | None = None
    keys: ApiKeys | None = None
    uses: KeyUses | None = None
    tenant_claim: str | None = None
    scope_prefix: str = ""
    workspace_claim: str | None = None

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The principal of a request. Raises UnauthenticatedError, or CWM-5005 or CWM-4002 if the check is not possible."""
        credential = _credential(headers.get("authorization"))
        if self.keys is not None and credential.startswith(MARK):
            return await self._machine(self.keys, credential)
        if self.tokens is None:
            raise UnauthenticatedError("This gateway takes API keys, and this is none.", why="no_api_key")
        return self._of_token(await self.tokens.checked(credential))

    async def _machine(self, keys: ApiKeys, credential: str) -> Principal:
        parts = taken_apart(credential)
        key = None if parts is None else await keys.find_of_every_tenant(parts[0])
        if parts is None or key is None or not key.opens_for(parts[1]):
            raise UnauthenticatedError("The API key is unknown, revoked or expired.", why="unknown_key")
        now = self.clock.now()
        if not key.is_good(now):
            why = "expired_key" if key.revoked_at is None else "revoked_key"
            raise UnauthenticatedError("The API key is unknown, revoked or expired.", why=why)
        if self.uses is not None:
            self.uses.note(key, now)
        return Principal(key.tenant, f"key:{key.name}", key.scopes, f"key:{key.key_id}", key.workspaces)

    def _of_token(self, token: AccessToken) -> Principal:
        names = token.scopes
        if self.scope_prefix:
            prefixed_names = (name for name in names if name.startswith(self.scope_prefix))
            names = frozenset(name.removeprefix(self.scope_prefix) for name in prefixed_names)
        tenant, workspaces = self._tenant(token.claims), self._workspaces(token.claims)
        return Principal(tenant, _subject(token), granted(names), token.client, workspaces)

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        if self.tenant_claim is None:
            return self.tenant
        tenant = claims.get(self.tenant_claim)
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise UnauthenticatedError(
                f"The access token names no tenant: its claim {self.tenant_claim} must hold 1 to 64 letters, "
                "digits, '_' and '-'.",
                why="no_tenant",
            )
        return tenant

    def _workspaces(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """The names in the claim, a list or one text with spaces between; others than names of workspaces do not count."""
        claim = () if self.workspace_claim is None else claims.get(self.workspace_claim, ())
        values = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
        names = {name for name in values if isinstance(name, str) and WORKSPACE_NAME.fullmatch(name)}
        if len(names) > _MOST_WORKSPACES:
            raise UnauthenticatedError(
                f"The access token names more than {_MOST_WORKSPACES} workspaces.", why="too_many_workspaces"
            )
        return frozenset(names)


def _credential(header: str | None) -> str:
    if header is None:
        raise UnauthenticatedError("This needs an access token or an API key, as a bearer token.")
    if len(header) > MAX_CREDENTIAL_CHARACTERS:
        raise UnauthenticatedError("The credentials are too long.", why="oversized")
    match = _BEARER.fullmatch(header)
    if match is None:
        raise UnauthenticatedError("The credentials are not one bearer token.", why="malformed")
    return match[1]


def _subject(token: AccessToken) -> str:
    if token.subject is not None and _is_name(token.subject):
        return f"{token.issuer}#{token.subject}"
    if token.subject is None and _is_name(token.client):
        return f"{token.issuer}?client={token.client}"
    raise UnauthenticatedError("The access token does not say who it is for.", why="no_subject")


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable()
