"""A sign-in: the credential that a person gave, sealed in a cookie of their browser.

The gateway stores none. Each request opens the cookie and has the credential checked as any other face would, so that a revoked
key or an expired token ends the sign-in at once, on every replica.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets as random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Final

from starlette.requests import cookie_parser
from starlette.types import Scope

from cwm.ports.clock import Clock
from cwm.transport.http.envelope import headers_of

_KEY_LABEL: Final = b"cwm console sign-in 1"
_NONCE_BYTES: Final = 12
_PIECE: Final = 3800
_MOST_PIECES: Final = 6
_HOST: Final = "__Host-"


@dataclass(frozen=True, slots=True)
class SignIn:
    """``until``: when it ends at the latest, in seconds since 1970. ``tenant``: which one is looked at, empty for one's own.

    ``by_token``: the credential is an access token, which ends sooner, and can be had again without asking the person.
    """

    credential: str = field(repr=False)
    until: float
    by_token: bool = False
    looks_only: bool = False
    tenant: str = ""
    id: str = field(default_factory=lambda: random.token_urlsafe(16))


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in at the authorization server that has begun. ``verifier`` is that of PKCE (RFC 7636)."""

    target: str
    until: float
    looks_only: bool = False
    tenant: str = ""
    state: str = field(default_factory=lambda: random.token_urlsafe(32), repr=False)
    verifier: str = field(default_factory=lambda: random.token_urlsafe(48), repr=False)


_NAMES: Final[Mapping[type, str]] = {SignIn: "cwm-console", Attempt: "cwm-console-attempt"}
_LASTS: Final[Mapping[type, int]] = {SignIn: 8 * 3600, Attempt: 600}
"""Seconds: a working day, and the time to find one's password."""


@dataclass(frozen=True, slots=True)
class Cookies:
    """Seals with AES-256-GCM under the first of ``secrets``, and opens with any of them; every replica has them.

    ``secure``: browsers reach the gateway by https only.
    """

    secrets: Sequence[bytes] = field(repr=False)
    clock: Clock
    secure: bool = False

    def of(self, scope: Scope) -> Jar:
        """The cookies of one request."""
        headers = headers_of(scope)
        secure = self.secure or scope["scheme"] == "https" or headers.get("origin", "").startswith("https://")
        return Jar(self, cookie_parser(headers.get("cookie", "")), secure)

    def until(self, kind: type[SignIn | Attempt]) -> float:
        """When one that begins now ends at the latest."""
        return self.clock.now().timestamp() + _LASTS[kind]

    def sealed(self, record: SignIn | Attempt) -> str:
        # Imported on use: it loads OpenSSL, which a gateway where nobody signs in does not need.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, name = os.urandom(_NONCE_BYTES), _NAMES[type(record)].encode()
        content = AESGCM(_key(self.secrets[0])).encrypt(nonce, json.dumps(asdict(record)).encode(), name)
        return base64.urlsafe_b64encode(nonce + content).decode().rstrip("=")

    def opened(self, kind: type[SignIn | Attempt], sealed: str) -> dict[str, Any] | None:
        """The fields of the record; None if it was not sealed here for this use, or has ended."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            content = base64.b64decode(sealed + "=" * (-len(sealed) % 4), b"-_", validate=True)
        except ValueError:
            return None
        nonce, rest, name = content[:_NONCE_BYTES], content[_NONCE_BYTES:], _NAMES[kind].encode()
        for secret in self.secrets:
            try:
                values: dict[str, Any] = json.loads(AESGCM(_key(secret)).decrypt(nonce, rest, name))
            except (InvalidTag, ValueError):
                continue
            return values if values["until"] > self.clock.now().timestamp() else None
        return None


@dataclass(frozen=True, slots=True)
class Jar:
    """The cookies of a request: ``values`` by name. ``secure``: the browser is known to have sent them by https."""

    cookies: Cookies
    values: Mapping[str, str]
    secure: bool

    def sign_in(self) -> SignIn | None:
        found = self._record(SignIn)
        return None if found is None else SignIn(**found)

    def attempt(self) -> Attempt | None:
        found = self._record(Attempt)
        return None if found is None else Attempt(**found)

    def keep(self, record: SignIn | Attempt) -> list[str]:
        """Values of ``Set-Cookie``. ValueError for a credential that is too long."""
        sealed, prefix = self.cookies.sealed(record), _HOST if self.secure else ""
        pieces = [sealed[at : at + _PIECE] for at in range(0, len(sealed), _PIECE)]
        if len(pieces) > _MOST_PIECES:
            raise ValueError("The credential is too long for a browser's cookies.")
        names = [_name(prefix, type(record), index) for index in range(len(pieces))]
        lasts = max(0, ceil(record.until - self.cookies.clock.now().timestamp()))
        fresh = [_written(name, piece, lasts) for name, piece in zip(names, pieces, strict=True)]
        return fresh + [each for each in self.forget(type(record)) if each.partition("=")[0] not in names]

    def forget(self, kind: type[SignIn | Attempt]) -> list[str]:
        """Values of ``Set-Cookie`` that remove what there is."""
        names = [_name(prefix, kind, index) for prefix in (_HOST, "") for index in range(_MOST_PIECES)]
        return [_written(name, "", 0) for name in names if name in self.values]

    def _record(self, kind: type[SignIn | Attempt]) -> dict[str, Any] | None:
        for prefix in (_HOST,) if self.secure else (_HOST, ""):
            pieces = [self.values.get(_name(prefix, kind, index), "") for index in range(_MOST_PIECES)]
            if sealed := "".join(pieces):
                return self.cookies.opened(kind, sealed)
        return None


def _name(prefix: str, kind: type[SignIn | Attempt], index: int) -> str:
    """The name of a piece: a browser keeps 4 kB under one name, and an access token may be longer."""
    return f"{prefix}{_NAMES[kind]}{f'-{index + 1}' if index else ''}"


def _written(name: str, value: str, lasts: int) -> str:
    secure = "; Secure" if name.startswith(_HOST) else ""
    return f"{name}={value}; Path=/; Max-Age={lasts}; HttpOnly; SameSite=Lax{secure}"


def _key(secret: bytes) -> bytes:
    return hmac.digest(secret, _KEY_LABEL, "sha256")
