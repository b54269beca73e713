"""What every page shows around its content: who is signed in, and the token that its forms carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from cwm.domain.principal import Principal
from cwm.transport.console.access import form
from cwm.transport.http.request_keys import CHOOSES, LOOK_ONLY, PRINCIPAL, SIGN_IN


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page. ``chooses``: whether it may look at every tenant."""

    subject: str
    tenant: str
    is_signed_in: bool
    looks_only: bool
    chooses: bool

    @property
    def name(self) -> str:
        """The subject without its issuer, as people know it."""
        return self.subject.rpartition("#")[2]


def frame(request: Request) -> dict[str, Any]:
    """``viewer``, None if nobody was authenticated, and ``form_token``, empty then."""
    principal: Principal | None = request.scope.get(PRINCIPAL)
    if principal is None:
        return {"viewer": None, form.FIELD: ""}
    viewer = Viewer(
        principal.subject,
        principal.tenant,
        is_signed_in=SIGN_IN in request.scope,
        looks_only=LOOK_ONLY in request.scope,
        chooses=CHOOSES in request.scope,
    )
    return {"viewer": viewer, form.FIELD: form.token(request)}
