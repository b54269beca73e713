"""Forms that change something: what they carry, and whether a page of this gateway sent them.

Whatever a ``POST`` of the console does is done after :func:`check`, also where nobody signs in: any page that a
browser has open can send a form to a loopback address.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from cwm.domain.errors import InvalidParameterError, SecurityError
from cwm.domain.principal import Principal
from cwm.ports.clock import Clock
from cwm.transport.http.front import is_own
from cwm.transport.http.request_keys import FORMS, PRINCIPAL, SIGN_IN

FIELD: Final = "form_token"
"""The name of the field, and of the variable in every template, that has the token."""
LOOKS_ONLY: Final = "This sign-in only looks. Nothing was changed."
REASON: Final = "form"
"""What ``context.reason`` says of a form that was refused."""

_KEY_LABEL: Final = b"cwm console forms 1"
_MOST_BYTES: Final = 64 * 1024
_MOST_FIELDS: Final = 200
_TYPE: Final = "application/x-www-form-urlencoded"
_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class FormTokens:
    """Tokens of forms. ``secrets``: the gateway's, the current one first; every replica has them."""

    secrets: Sequence[bytes] = field(repr=False)
    clock: Clock

    def made(self, whose: str) -> str:
        return self._of(self.secrets[0], whose, self._hour())

    def accepts(self, token: str, whose: str) -> bool:
        """Whether it was made for ``whose`` in this hour or the one before."""
        hour, given = self._hour(), token.encode("utf-8", "replace")
        good = [
            self._of(secret, whose, each).encode() for secret in self.secrets for each in (hour, hour - 1)
        ]
        return any(hmac.compare_digest(given, each) for each in good)

    def _hour(self) -> int:
        return int(self.clock.now().timestamp()) // _SECONDS

    def _of(self, secret: bytes, whose: str, hour: int) -> str:
        key = hmac.digest(secret, _KEY_LABEL, "sha256")
        return hmac.digest(key, f"{hour}\0{whose}".encode(), "sha256").hex()


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form by name."""

    fields: Mapping[str, Sequence[str]]

    def text(self, name: str) -> str:
        """The first value of a field, without white space around it; empty if it is not there."""
        return next(iter(self.fields.get(name, ())), "").strip()

    def texts(self, name: str) -> list[str]:
        """Every value of a field, as of several boxes with one name."""
        return [value for value in map(str.strip, self.fields.get(name, ())) if value]


async def read(request: Request) -> Form:
    """The form in the request's body. CWM-1003 if it is none, or has more than 64 KiB or 200 fields."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise InvalidParameterError(f"This takes forms, as {_TYPE}.", field="content-type")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise InvalidParameterError(f"A form has at most {_MOST_BYTES} bytes.", field="body")
    try:
        fields = parse_qs(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise InvalidParameterError("The form cannot be read.", field="body") from None
    return Form(fields)


def token(request: Request) -> str:
    """The token that a form on the page for this request carries. It is good for one to two hours."""
    tokens: FormTokens = request.scope[FORMS]
    return tokens.made(_whose(request))


def check(request: Request, form: Form) -> None:
    """CWM-9002 unless a page of this gateway, made for the same sign-in within two hours, sent the form."""
    check_origin(request)
    tokens: FormTokens = request.scope[FORMS]
    if not tokens.accepts(form.text(FIELD), _whose(request)):
        raise SecurityError(
            "This form is too old, or was made for another sign-in. Nothing was changed.", reason=REASON
        )


def check_origin(request: Request) -> None:
    """CWM-9002 unless a page of this gateway sent the request.

    Browsers send ``Origin`` with every form, and ``Sec-Fetch-Site`` where the connection is secure or on this machine:
    what is there has to be right, and one of them has to be there.
    """
    origins, sites = request.headers.getlist("origin"), request.headers.getlist("sec-fetch-site")
    host = request.headers.get("host", "")
    is_ours = all(is_own(origin.encode("latin-1"), host.encode("latin-1")) for origin in origins)
    if not is_ours or any(site != "same-origin" for site in sites) or not (origins or sites):
        raise SecurityError("A page elsewhere sent this form. Nothing was changed.", reason=REASON)


def _whose(request: Request) -> str:
    """The sign-in, or who the caller is where there is none."""
    sign_in: str | None = request.scope.get(SIGN_IN)
    if sign_in is not None:
        return f"sign-in\0{sign_in}"
    principal: Principal = request.scope[PRINCIPAL]
    return f"caller\0{principal.tenant}\0{principal.subject}"
