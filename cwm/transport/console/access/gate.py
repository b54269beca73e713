"""Stands before the console's pages: finds out who asks for one, or leads them to the sign-in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from cwm.domain.access import LOOKING, AccessScope
from cwm.domain.errors import CwmError, InvalidParameterError, SecurityError, UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.ports.identity import Identity
from cwm.services.access.refusals import Refusals
from cwm.services.access.standing import Credential
from cwm.transport.console.access.form import LOOKS_ONLY, FormTokens
from cwm.transport.console.access.sign_in import Cookies, SignIn
from cwm.transport.console.pages import PATH
from cwm.transport.console.refusal import refusal
from cwm.transport.http.envelope import headers_of
from cwm.transport.http.request_keys import CHOOSES, CREDENTIAL, FORMS, LOOK_ONLY, PRINCIPAL, SIGN_IN

SIGN_IN_PATH: Final = f"{PATH}/sign-in"
START_PATH: Final = f"{SIGN_IN_PATH}/start"
RETURN_PATH: Final = f"{SIGN_IN_PATH}/return"
SIGN_OUT_PATH: Final = f"{PATH}/sign-out"
TENANT_PATH: Final = f"{PATH}/tenant"

_FACE: Final = "console"
_FOR_STRANGERS: Final = frozenset({SIGN_IN_PATH, START_PATH, RETURN_PATH})
_STATIC: Final = f"{PATH}/static/"
_OF_LOOKERS: Final = frozenset({SIGN_OUT_PATH, TENANT_PATH})
_ENDED: Final = frozenset({"expired", "inactive"})
_SAFE: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware for what is at and below ``/console``; everything else passes it untouched.

    Who asks is known by the header ``Authorization``, otherwise by the sign-in of the browser, which no other face takes.
    ``home``: the gateway's own tenant, whose ``admin`` may look at every tenant.
    """

    app: ASGIApp
    identity: Identity
    refusals: Refusals
    forms: FormTokens
    cookies: Cookies
    home: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or not f"{path}/".startswith(f"{PATH}/"):
            await self.app(scope, receive, send)
            return
        scope[FORMS] = self.forms
        if path in _FOR_STRANGERS or path.startswith(_STATIC):
            await self.app(scope, receive, send)
            return
        sign_in: SignIn | None = None
        try:
            if not path.isprintable():
                raise InvalidParameterError("There is nothing at this address.")
            headers = headers_of(scope)
            if "authorization" not in headers:
                sign_in = self.cookies.of(scope).sign_in()
            if sign_in is not None:
                headers = {**headers, "authorization": f"Bearer {sign_in.credential}"}
            principal = await self.identity.authenticate(headers)
            scope[CREDENTIAL] = Credential.of(headers, principal)
            if sign_in is not None:
                principal = self._signed_in(scope, sign_in, principal)
            if LOOK_ONLY in scope and scope["method"] not in _SAFE and path not in _OF_LOOKERS:
                raise SecurityError(LOOKS_ONLY, reason="look_only")
        except CwmError as refused:
            if isinstance(refused, SecurityError):
                await self.refusals.note(refused, _FACE, scope.get(PRINCIPAL))
            await self._refused(Request(scope), refused, sign_in)(scope, receive, send)
            return
        scope[PRINCIPAL] = principal
        with bound_contextvars(tenant=principal.tenant):
            await self.app(scope, receive, send)

    def _signed_in(self, scope: Scope, sign_in: SignIn, principal: Principal) -> Principal:
        scope[SIGN_IN] = sign_in.id
        chooses = principal.tenant == self.home and AccessScope.ADMIN in principal.scopes
        if chooses:
            scope[CHOOSES] = True
        if sign_in.tenant not in {"", principal.tenant}:
            if not chooses:
                raise SecurityError("This sign-in may not look at another tenant any more. Sign in again.")
            scope[LOOK_ONLY] = True
            principal = principal.as_guest_of(sign_in.tenant)
        elif sign_in.looks_only:
            scope[LOOK_ONLY] = True
            principal = replace(principal, scopes=principal.scopes & LOOKING)
        scope[PRINCIPAL] = principal
        return principal

    def _refused(self, request: Request, refused: CwmError, sign_in: SignIn | None) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "").lower()
        if not isinstance(refused, UnauthenticatedError) or request.method != "GET" or not wants_page:
            return refusal(refused, request)
        query = request.scope["query_string"].decode("latin-1")
        wanted = {"next": request.url.path + (f"?{query}" if query else "")}
        if sign_in is not None and sign_in.by_token and refused.why in _ENDED:
            # The authorization server still knows the person, who need not notice that a token ended.
            look = {"look": "1"} if sign_in.looks_only else {}
            return RedirectResponse(f"{START_PATH}?{urlencode(wanted | look)}", 303)
        return RedirectResponse(f"{SIGN_IN_PATH}?{urlencode(wanted)}", 303)
