"""The ways in and out of the console: sign-in by key or at the authorization server, sign-out, and the choice of a tenant."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cwm.domain.access import LOOKING, spelled
from cwm.domain.errors import CwmError, InvalidParameterError, SecurityError, UnauthenticatedError
from cwm.domain.principal import Principal
from cwm.ports.authorization_codes import AuthorizationCodes
from cwm.ports.identity import Identity
from cwm.services.access.limits import Limits
from cwm.services.access.refusals import Refusals
from cwm.services.audit.journal import Journal
from cwm.transport.console.access import form
from cwm.transport.console.access.gate import (
    RETURN_PATH,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
    START_PATH,
    TENANT_PATH,
)
from cwm.transport.console.access.sign_in import Attempt, Cookies, SignIn
from cwm.transport.console.pages import PATH, Page, rendered
from cwm.transport.console.refusal import refusal
from cwm.transport.http.counted import counted
from cwm.transport.http.errors import STATUS
from cwm.transport.http.request_keys import CHOOSES, PRINCIPAL

_FACE: Final = "console"
_TARGET: Final = re.compile(r"/console(?:[/?][!-\[\]-~]*)?")
_LONGEST_TARGET: Final = 1024
_ERROR: Final = re.compile(r"[a-z_]{1,64}")
_NO_REFERRER: Final = {"referrer-policy": "no-referrer"}

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Entrance:
    """``takes_keys``: whether API keys sign people in. ``codes``: None where nobody signs in at an authorization server.

    ``tenants`` lists those that there are; ``scope_prefix`` is what the authorization server puts before CWM's scopes.
    """

    identity: Identity
    limits: Limits
    refusals: Refusals
    journal: Journal
    cookies: Cookies
    tenants: Callable[[], Awaitable[Sequence[str]]]
    home: str
    takes_keys: bool = False
    codes: AuthorizationCodes | None = None
    scope_prefix: str = ""

    def routes(self) -> list[Route]:
        return [
            Route(SIGN_IN_PATH, self._guarded(self.page), methods=["GET"]),
            Route(SIGN_IN_PATH, self._guarded(self.by_key), methods=["POST"]),
            Route(START_PATH, self._guarded(self.start), methods=["GET"]),
            Route(RETURN_PATH, self._guarded(self.back), methods=["GET"]),
            Route(SIGN_OUT_PATH, self._guarded(self._counted(self.leave)), methods=["POST"]),
            Route(TENANT_PATH, self._guarded(self._counted(self.choice)), methods=["GET"]),
            Route(TENANT_PATH, self._guarded(self._counted(self.choose)), methods=["POST"]),
        ]

    def _guarded(self, handle: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except CwmError as error:
                await self._note(error, request.scope.get(PRINCIPAL))
                return refusal(error, request)

        return guarded

    async def page(self, request: Request) -> Response:
        return await self._page(request, _target(request.query_params.get("next", "")))

    async def by_key(self, request: Request) -> Response:
        """Signs in with the key in the form. A key that is refused leads to the page again, 401."""
        form.check_origin(request)
        sent = await form.read(request)
        target, key = _target(sent.text("next")), sent.text("key")
        if not self.takes_keys:
            raise InvalidParameterError("Nobody signs in with a key here.", field="key")
        if not key:
            return await self._page(request, target, InvalidParameterError("A key is needed.", field="key"))
        sign_in = SignIn(key, self.cookies.until(SignIn), looks_only=bool(sent.text("look")))
        return await self._signed_in(request, sign_in, target)

    async def start(self, request: Request) -> Response:
        """Sends the browser to the authorization server."""
        if self.codes is None:
            raise InvalidParameterError("Nobody signs in at an authorization server here.")
        jar = self.cookies.of(request.scope)
        before = jar.sign_in()
        attempt = Attempt(
            _target(request.query_params.get("next", "")),
            self.cookies.until(Attempt),
            looks_only=bool(request.query_params.get("look")),
            tenant="" if before is None else before.tenant,
        )
        address = await self.codes.address(
            state=attempt.state,
            verifier=attempt.verifier,
            scopes=self._looking() if attempt.looks_only else None,
        )
        return _with_cookies(RedirectResponse(address, 303, _NO_REFERRER), jar.keep(attempt))

    async def back(self, request: Request) -> Response:
        """Exchanges what the authorization server sent along for a token, and signs in with that."""
        query, jar = request.query_params, self.cookies.of(request.scope)
        attempt = jar.attempt()
        if self.codes is None or attempt is None or not _same(query.get("state", ""), attempt.state):
            error = InvalidParameterError(
                "This sign-in took too long, or another one was begun in this browser. Begin again."
            )
            return await self._page(request, PATH, error)
        used = jar.forget(Attempt)
        if "error" in query or not query.get("code"):
            why = query.get("error", "")
            words = f" ({why})" if _ERROR.fullmatch(why) else ""
            refused = UnauthenticatedError(
                f"The authorization server refused the sign-in{words}.", why="refused"
            )
            return _with_cookies(await self._page(request, attempt.target, refused), used)
        try:
            token = await self.codes.access_token(
                code=query["code"], verifier=attempt.verifier, issuer=query.get("iss")
            )
        except CwmError as error:
            await self._note(error)
            return _with_cookies(await self._page(request, attempt.target, error), used)
        sign_in = SignIn(
            token,
            self.cookies.until(SignIn),
            by_token=True,
            looks_only=attempt.looks_only,
            tenant=attempt.tenant,
        )
        return _with_cookies(await self._signed_in(request, sign_in, attempt.target), used)

    async def leave(self, request: Request) -> Response:
        """Ends the sign-in of this browser."""
        form.check(request, await form.read(request))
        await self.journal.note(request.scope[PRINCIPAL], "console_sign_out", "success", {})
        answer = RedirectResponse(f"{SIGN_IN_PATH}?notice=signed-out", 303)
        return _with_cookies(answer, self.cookies.of(request.scope).forget(SignIn))

    async def choice(self, request: Request) -> Response:
        """The page of tenants, for who may look at all of them."""
        _require_choice(request)
        principal: Principal = request.scope[PRINCIPAL]
        names = sorted({*await self.tenants(), self.home} - {""})
        page = Page("tenants.html", {"tenants": names, "current": principal.tenant, "home": self.home})
        return await run_in_threadpool(rendered, page, request)

    async def choose(self, request: Request) -> Response:
        sent = await form.read(request)
        form.check(request, sent)
        _require_choice(request)
        jar, tenant = self.cookies.of(request.scope), sent.text("tenant")
        sign_in = jar.sign_in()
        if sign_in is None or tenant not in {*await self.tenants(), self.home}:
            raise InvalidParameterError("There is no such tenant.", field="tenant")
        chosen = replace(sign_in, tenant="" if tenant == self.home else tenant)
        principal: Principal = request.scope[PRINCIPAL]
        await self.journal.note(principal, "console_tenant", "success", {"looks_at": tenant})
        return _with_cookies(RedirectResponse(PATH, 303), jar.keep(chosen))

    def _counted(self, handle: Handler) -> Handler:
        async def handled(request: Request) -> Response:
            async with counted(self.limits, request.scope[PRINCIPAL], request.method):
                return await handle(request)

        return handled

    async def _signed_in(self, request: Request, sign_in: SignIn, target: str) -> Response:
        try:
            headers = {"authorization": f"Bearer {sign_in.credential}"}
            principal = await self.identity.authenticate(headers)
            cookies = self.cookies.of(request.scope).keep(sign_in)
        except CwmError as error:
            await self._note(error)
            return await self._page(request, target, error)
        except ValueError as error:
            return await self._page(request, target, InvalidParameterError(str(error)))
        details = {"by": "token" if sign_in.by_token else "key", "looks_only": sign_in.looks_only}
        await self.journal.note(principal, "console_sign_in", "success", details)
        return _with_cookies(RedirectResponse(target, 303, _NO_REFERRER), cookies)

    async def _page(self, request: Request, target: str, error: CwmError | None = None) -> Response:
        values: dict[str, Any] = {
            "error": error,
            "target": target,
            "takes_keys": self.takes_keys,
            "takes_tokens": self.codes is not None,
            "start": f"{START_PATH}?{urlencode({'next': target})}",
            "start_looking": f"{START_PATH}?{urlencode({'next': target, 'look': '1'})}",
        }
        status = 200 if error is None else STATUS[error.kind]
        answer = await run_in_threadpool(rendered, Page("sign_in.html", values, status), request)
        if request.url.path == RETURN_PATH:
            answer.headers.update(_NO_REFERRER)
        return answer

    async def _note(self, error: CwmError, principal: Principal | None = None) -> None:
        if isinstance(error, SecurityError):
            await self.refusals.note(error, _FACE, principal)

    def _looking(self) -> str:
        return " ".join(self.scope_prefix + name for name in spelled(LOOKING))


def _require_choice(request: Request) -> None:
    if CHOOSES not in request.scope:
        raise SecurityError("Only who administers the gateway's own tenant looks at others.")


def _target(text: str) -> str:
    """The page to go to: one of the console's."""
    return text if len(text) <= _LONGEST_TARGET and _TARGET.fullmatch(text) else PATH


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _with_cookies(answer: Response, cookies: Sequence[str]) -> Response:
    for cookie in cookies:
        answer.headers.append("set-cookie", cookie)
    return answer
