"""An authorization server that misbehaves on demand, on a real socket; and a clock to move."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.transport.mcp.gateway import serving

AUDIENCE = "https://cwm.test/mcp"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(slots=True)
class MovableClock:
    passed: float = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        return 1000.0 + self.passed


@cache
def rsa(key_id: str) -> RSAKey:
    """The same for a name: making one takes longer than a test."""
    return RSAKey.generate_key(2048, {"kid": key_id, "use": "sig"}, auto_kid=False)


def weak_rsa(key_id: str) -> RSAKey:
    numbers = generate_private_key(65537, 1024)
    return RSAKey(numbers, numbers, {"kid": key_id, "use": "sig"})


def ec(key_id: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": key_id, "use": "sig"}, auto_kid=False)


@dataclass(slots=True)
class Authority:
    """``asked`` counts requests by path. ``documents`` replaces what a path answers, ``hold`` lets it wait."""

    issuer: str
    clock: MovableClock
    keys: list[RSAKey | ECKey] = field(default_factory=list)
    documents: dict[str, Response] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Of a token that is good for five minutes; what is None is left out."""
        now = int(self.clock.now().timestamp())
        told = {
            "iss": self.issuer,
            "sub": "alice",
            "aud": AUDIENCE,
            "client_id": "desktop",
            "iat": now,
            "exp": now + 300,
            "scope": "windows:read openid",
            **changed,
        }
        return {name: value for name, value in told.items() if value is not None}

    def token(
        self, key: RSAKey | ECKey | None = None, header: dict[str, Any] | None = None, **changed: Any
    ) -> str:
        signing = key or self.keys[0]
        algorithm = "ES256" if isinstance(signing, ECKey) else "RS256"
        told = {"alg": algorithm, "kid": signing.kid, "typ": "at+jwt", **(header or {})}
        told = {name: value for name, value in told.items() if value is not None}
        return jwt.encode(told, self.claims(**changed), signing, algorithms=[algorithm])

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked[path] += 1
        self.began.set()
        if self.hold is not None:
            await self.hold.wait()
        if path in self.documents:
            return self.documents[path]
        if path == "/.well-known/openid-configuration":
            return as_json({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks"})
        if path == "/jwks":
            return as_json({"keys": [key.as_dict(private=False) for key in self.keys]})
        if path == "/introspect":
            form = await request.form()
            return as_json(self.known.get(str(form["token"]), {"active": False}))
        return Response(status_code=404)


@asynccontextmanager
async def authority() -> AsyncIterator[Authority]:
    one = Authority("", MovableClock(), [rsa("first")])
    app = Starlette(routes=[Route("/{rest:path}", one.answer, methods=["GET", "POST"])])
    async with serving(app) as url:
        one.issuer = url
        try:
            yield one
        finally:
            if one.hold is not None:
                one.hold.set()


def as_json(told: Any) -> Response:
    return Response(json.dumps(told), media_type="application/json")
