"""Authentication: builds its adapters and adds the ASGI layer in front of every route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.identity import LocalIdentity
from cwm.adapters.local.secret import audit_keys
from cwm.adapters.sql import schema
from cwm.adapters.sql.api_keys import SqlApiKeys
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.upstream_tools import SqlUpstreamTools
from cwm.domain.access import EVERY, spelled
from cwm.domain.operators import Operators
from cwm.ports.access_tokens import AccessTokens
from cwm.ports.audit import AuditLog
from cwm.ports.authorization_codes import AuthorizationCodes
from cwm.ports.clock import Clock
from cwm.ports.identity import Identity
from cwm.ports.meter import Meter
from cwm.services.access.authentication import Authentication
from cwm.services.access.key_uses import KeyUses
from cwm.services.access.machine_keys import MachineKeys
from cwm.services.access.refusals import Refusals
from cwm.services.access.standing import Standing
from cwm.services.access.tenant_keys import TenantKeys
from cwm.services.upstreams.tool_desk import ToolDesk
from cwm.settings import Settings, SettingsError
from cwm.settings.auth import Auth
from cwm.settings.urls import on_loopback
from cwm.transport.console.access.gate import RETURN_PATH
from cwm.transport.console.pages import PATH as CONSOLE_PATH
from cwm.transport.http.authentication import Authentication as AuthenticationLayer
from cwm.transport.http.challenge import ProtectedResource

if TYPE_CHECKING:
    from cwm.adapters.oauth.fetch import Fetch


@dataclass(frozen=True, slots=True)
class Access:
    """``identity`` authenticates HTTP requests; ``refusals`` records those that were refused. ``codes`` signs people in.

    ``standing`` ends streams with the credentials that opened them.
    """

    identity: Identity
    refusals: Refusals
    close: Callable[[], Awaitable[None]]
    standing: Standing
    codes: AuthorizationCodes | None = None


def build_access(
    settings: Settings, database: Database, audit: AuditLog, clock: Clock, meter: Meter
) -> Access:
    """Opens no connection. Without an issuer and API keys every caller is the local principal."""
    auth, tenant = settings.auth, settings.isolation.tenant
    refusals = Refusals(audit, clock, meter, tenant)
    if not auth.required:
        local = LocalIdentity(tenant)
        return Access(local, refusals, _nothing, Standing(local))
    tokens, codes = None, None
    if auth.oauth_issuer is not None:
        # Imported on use, as what it fetches for.
        from cwm.adapters.oauth.fetch import Fetch

        fetch = Fetch()
        tokens = _access_tokens(auth, auth.oauth_issuer, fetch, clock)
        codes = _codes(auth, auth.oauth_issuer, fetch, clock)
    keys = SqlApiKeys(database) if auth.api_keys else None
    uses = None if keys is None else KeyUses(keys)
    identity = Authentication(
        tenant=tenant,
        clock=clock,
        tokens=tokens,
        keys=keys,
        uses=uses,
        tenant_claim=auth.oauth_tenant_claim,
        scope_prefix=auth.oauth_scope_prefix,
        workspace_claim=auth.oauth_workspace_claim,
    )

    async def close() -> None:
        if uses is not None:
            await uses.aclose()
        if tokens is not None:
            await tokens.aclose()

    return Access(identity, refusals, close, Standing(identity), codes)


def build_keys(settings: Settings, database: Database, audit: AuditLog, clock: Clock) -> TenantKeys:
    return TenantKeys(MachineKeys(SqlApiKeys(database), audit, clock), accepted=settings.auth.api_keys)


def guard(app: Starlette, settings: Settings, access: Access) -> None:
    """Require authentication for everything added to ``app`` so far, and serve the resource metadata (RFC 9728)."""
    auth = settings.auth
    resource = ProtectedResource(auth.public_url or "", auth.oauth_issuer, auth.oauth_scope_prefix)
    app.add_middleware(
        AuthenticationLayer,
        identity=access.identity,
        refusals=access.refusals,
        resource=resource,
        operators=Operators(settings.isolation.tenant),
        public_metrics=auth.public_metrics,
        others_below=CONSOLE_PATH,
    )
    app.router.routes.extend(resource.routes())


def refuse_open_socket(settings: Settings) -> None:
    """Without authentication listen on loopback only, unless CWM_ALLOW_UNAUTHENTICATED is set."""
    host = settings.http.host
    if settings.auth.required or settings.http.allow_unauthenticated or on_loopback(host):
        return
    raise SettingsError(
        f"CWM_HOST is {host}: without authentication the gateway listens on loopback only. "
        "Set CWM_OAUTH_ISSUER or CWM_API_KEYS, or CWM_ALLOW_UNAUTHENTICATED=true if whoever can reach that "
        "address may do everything."
    )


@asynccontextmanager
async def opened_keys(settings: Settings) -> AsyncIterator[MachineKeys]:
    """The API keys without a gateway. Raises SchemaError as :func:`_registry` does."""
    async with _registry(settings) as (database, audit):
        yield MachineKeys(SqlApiKeys(database), audit, SystemClock())


@asynccontextmanager
async def opened_tool_desk(settings: Settings) -> AsyncIterator[ToolDesk]:
    """The tools of upstreams without a gateway. Raises SchemaError as :func:`_registry` does."""
    async with _registry(settings) as (database, audit):
        yield ToolDesk(SqlUpstreamTools(database), audit, SystemClock(), settings.isolation.tenant)


@asynccontextmanager
async def _registry(settings: Settings) -> AsyncIterator[tuple[Database, SqlAuditLog]]:
    """The database and its audit log. Creates the schema in an empty SQLite file; SchemaError for another schema."""
    database = open_database(settings.database.url())
    try:
        if settings.database.database_url is None and await schema.is_empty(database):
            await schema.upgrade(settings.database.url())
        await schema.require_current(database)
        audit = SqlAuditLog(database, audit_keys(settings.isolation))
        yield database, audit
        await audit.settle()
    finally:
        await database.dispose()


def _access_tokens(auth: Auth, issuer: str, fetch: Fetch, clock: Clock) -> AccessTokens:
    # Imported on use: the signature libraries take memory that a gateway without an issuer does not need.
    from cwm.adapters.oauth.claims import Expected
    from cwm.adapters.oauth.introspected_tokens import IntrospectedTokens
    from cwm.adapters.oauth.signed_tokens import SignedTokens
    from cwm.adapters.oauth.signing_keys import SigningKeys
    from cwm.adapters.oauth.tokens import OAuthTokens

    expected = Expected(issuer, auth.audiences(), auth.oauth_leeway_seconds)
    keys = SigningKeys(issuer, auth.oauth_jwks_url, fetch, clock, auth.oauth_keys_seconds)
    opaque = None
    if auth.oauth_introspection_url is not None and auth.oauth_client_secret is not None:
        opaque = IntrospectedTokens(
            auth.oauth_introspection_url,
            (auth.oauth_client_id, auth.oauth_client_secret.get_secret_value()),
            fetch,
            expected,
            clock,
            auth.oauth_introspection_cache_seconds,
        )
    return OAuthTokens(SignedTokens(keys, expected, auth.algorithms(), clock), opaque, keys, fetch)


def _codes(auth: Auth, issuer: str, fetch: Fetch, clock: Clock) -> AuthorizationCodes | None:
    if auth.console_client_id is None:
        return None
    from cwm.adapters.oauth.authorization_codes import IssuerCodes

    secret = auth.console_client_secret
    return IssuerCodes(
        issuer,
        auth.console_client_id,
        None if secret is None else secret.get_secret_value(),
        f"{auth.public_url}{RETURN_PATH}",
        auth.audiences()[0],
        auth.console_scopes or " ".join(auth.oauth_scope_prefix + name for name in spelled(EVERY)),
        fetch,
        clock,
    )


async def _nothing() -> None:
    return
