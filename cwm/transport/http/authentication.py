"""Authenticates every request before any other code handles it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_types import INVALID_REQUEST
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from cwm.domain.access import NOTHING, OF_AN_AGENT, AccessScope, spelled
from cwm.domain.errors import CwmError, InsufficientScopeError, InvalidParameterError, SecurityError
from cwm.domain.pooling import POOLING_PATHS
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity
from cwm.services.access.refusals import Refusals
from cwm.services.access.standing import Credential
from cwm.transport.http.challenge import MCP_PATH, METADATA_PATH, ProtectedResource
from cwm.transport.http.envelope import headers_of, send_whole
from cwm.transport.http.errors import error_body, error_headers, status_of
from cwm.transport.http.request_keys import CREDENTIAL, PRINCIPAL, STRANGER

_JSON: Final = (b"content-type", b"application/json")
_OPEN: Final = frozenset({"/", "/healthz", "/openapi.json", METADATA_PATH, METADATA_PATH + MCP_PATH})
_FOR_STRANGERS_TOO: Final = frozenset({"/readyz"})
_METRICS: Final = "/metrics"
_API_KEY: Final = "x-api-key"
_NEEDED: Final[Mapping[str, frozenset[AccessScope]]] = {
    "/reconcile": frozenset({AccessScope.ADMIN}),
    _METRICS: frozenset({AccessScope.ADMIN}),
    "/v1/chat/completions": frozenset({AccessScope.SESSIONS_WRITE}),
    "/v1/completions": frozenset({AccessScope.SESSIONS_WRITE}),
    "/v1/messages": frozenset({AccessScope.SESSIONS_WRITE}),
    "/v1/messages/count_tokens": frozenset({AccessScope.SESSIONS_WRITE}),
    "/v1/responses": frozenset({AccessScope.SESSIONS_WRITE}),
    "/v1/conversations": frozenset({AccessScope.SESSIONS_WRITE}),
    **dict.fromkeys(POOLING_PATHS, frozenset({AccessScope.SESSIONS_WRITE})),
}
_KEPT: Final = ("/v1/responses", "/v1/conversations")


@dataclass(frozen=True, slots=True)
class Authentication:
    """ASGI middleware: authenticates the caller (``scope[PRINCIPAL]``) or refuses the request.

    Log lines written while the request is served name the tenant, but not the subject. A path needs credentials
    unless it is in ``_OPEN``: a new route is closed until somebody opens it. ``others_below``: a path at and below which
    another layer authenticates.
    """

    app: ASGIApp
    identity: Identity
    refusals: Refusals
    resource: ProtectedResource
    public_metrics: bool = False
    others_below: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if not path.isprintable():
            # A router may treat "/reconcile\n" as "/reconcile", but the table of needed scopes would not.
            await self._refuse(send, path, InvalidParameterError("There is nothing at this path."), 404)
            return
        principal: Principal | None = None
        try:
            headers = _credentials(headers_of(scope), path)
            principal = await self.identity.authenticate(headers)
            _require(principal, scope["method"], path)
        except CwmError as error:
            if principal is None and path in _FOR_STRANGERS_TOO:
                scope[STRANGER] = True
                await self.app(scope, receive, send)
                return
            if isinstance(error, SecurityError):
                await self.refusals.note(error, _face(path), principal)
            await self._refuse(send, path, error, status_of(error, path))
            return
        # Changes the scope in place: outer middleware reads the route from it.
        scope[PRINCIPAL] = principal
        scope[CREDENTIAL] = Credential.of(headers, principal)
        with bound_contextvars(tenant=principal.tenant):
            await self.app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        if self.others_below is not None and f"{path}/".startswith(f"{self.others_below}/"):
            return True
        return path in _OPEN or (self.public_metrics and path == _METRICS)

    async def _refuse(self, send: Send, path: str, error: CwmError, status: int) -> None:
        headers = [_JSON, (b"cache-control", b"no-store"), *error_headers(error)]
        challenge = self.resource.challenge(error, path)
        if challenge is not None:
            headers.append((b"www-authenticate", challenge.encode("ascii", "replace")))
        await send_whole(send, status, headers, _body(path, error))


def _credentials(headers: dict[str, str], path: str) -> dict[str, str]:
    """The headers, with the key of Anthropic's clients as a bearer token where there is none.

    The SDK sends the key of its environment, which may be for Anthropic, beside the token that it was started with.
    """
    key = headers.get(_API_KEY) if path.startswith("/v1/") else None
    return headers if key is None else {"authorization": f"Bearer {key}", **headers}


def _require(principal: Principal, method: str, path: str) -> None:
    principal.require(_needed(method, path))
    if path == MCP_PATH and not principal.scopes:
        raise InsufficientScopeError(
            "The caller has none of this gateway's scopes.",
            reason="insufficient_scope",
            required=spelled(OF_AN_AGENT),
        )


def _needed(method: str, path: str) -> frozenset[AccessScope]:
    # Routes of turns have a slash at their end, too.
    prefix = next((prefix for prefix in _KEPT if path.startswith(f"{prefix}/")), None)
    if prefix is not None and method == "GET":
        return frozenset({AccessScope.WINDOWS_READ})
    return _NEEDED.get(prefix or path.rstrip("/"), NOTHING)


def _face(path: str) -> str:
    if path in _NEEDED or path in {MCP_PATH, *_FOR_STRANGERS_TOO}:
        return path
    return "/v1" if path.startswith("/v1/") else "elsewhere"


def _body(path: str, refusal: CwmError) -> bytes:
    """The error in the format of the path's face."""
    if path.startswith("/v1/") or path.rstrip("/") in POOLING_PATHS:
        return error_body(refusal, path)
    body: dict[str, Any] = refusal.as_dict()
    if path == MCP_PATH:
        error = {"code": INVALID_REQUEST, "message": refusal.published, "data": body}
        body = {"jsonrpc": "2.0", "id": None, "error": error}
    return json.dumps(body).encode()
