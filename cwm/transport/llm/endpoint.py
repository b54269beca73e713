"""An endpoint of the LLM face: the methods of one path, with errors in the format of the path's API."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from cwm.domain.errors import CwmError, EngineConnectionError, InvalidParameterError
from cwm.ports.identity import Identity
from cwm.services.access.limits import Limits
from cwm.services.audit.journal import Journal
from cwm.services.engines.roster import EngineRoster
from cwm.transport.http.correlation import ARRIVAL
from cwm.transport.http.counted import counted
from cwm.transport.http.envelope import SESSION_HEADER, ClientLeftError, headers_of, send_error
from cwm.transport.http.request_keys import PRINCIPAL

Serve: TypeAlias = Callable[["Scope", "Receive", "Send"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Authenticates and counts each request before ``serve`` reads anything.

    ``methods``: as the header ``Allow`` lists them. ``route``: for the audit log, which has what a caller asked for in vain.
    """

    methods: str
    serve: Serve
    route: str
    identity: Identity
    limits: Limits
    journal: Journal
    engines: EngineRoster

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["method"] not in self.methods.split(", "):
            refusal = InvalidParameterError(
                f"{path} accepts {self.methods} only.", method=scope["method"], allowed=self.methods
            )
            await send_error(send, path, refusal, 405, [(b"allow", self.methods.encode())])
            return
        try:
            headers = headers_of(scope)
            principal = scope.get(PRINCIPAL) or await self.identity.authenticate(headers)
            scope[PRINCIPAL] = principal
            async with counted(self.limits, principal, scope["method"], headers.get(SESSION_HEADER)):
                await self.serve(scope, receive, send)
        except CwmError as error:
            if (arrival := scope.get(ARRIVAL)) is not None:
                arrival.error = error.code
            await self._note(scope, error)
            if isinstance(error, EngineConnectionError):
                error.retry_after_seconds = self._back_in(scope)
            await send_error(send, path, error)
        except ClientLeftError:
            return

    def _back_in(self, scope: Scope) -> int:
        principal = scope.get(PRINCIPAL)
        seconds = self.engines.back_in(principal.tenant if principal else "", self.journal.clock.now())
        return max(1, math.ceil(seconds))

    async def _note(self, scope: Scope, error: CwmError) -> None:
        if (principal := scope.get(PRINCIPAL)) is not None:
            with suppress(CwmError):
                await self.journal.not_found(principal, self.route, error, scope["path_params"] or None)


class Unknown:
    """Refuses a path of the API that CWM does not serve."""

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        path = scope["path"]
        await send_error(send, path, InvalidParameterError(f"{path} is not served here."), 404)
