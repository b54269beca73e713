"""Opaque access tokens, checked by introspection at the authorization server (RFC 7662)."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from cwm.adapters.oauth.claims import Expected
from cwm.adapters.oauth.fetch import Fetch
from cwm.background import cancel_and_wait
from cwm.domain.access_token import AccessToken
from cwm.domain.errors import AuthorityUnavailableError, UnauthenticatedError
from cwm.domain.origin import ORIGIN
from cwm.ports.clock import Clock

_MOST_REMEMBERED: Final = 4096
_MOST_AT_ONCE: Final = 64
_MOST_OF_ONE: Final = 16

_Claims = Mapping[str, Any]
_Cache = OrderedDict[bytes, tuple[float, _Claims]]


@dataclass(slots=True, eq=False, repr=False)
class IntrospectedTokens:
    """Caches a token's claims for ``cache_seconds``; expiry and audience are checked on every use.

    Inactive tokens have a cache of their own, so they cannot evict active ones. At most 64 introspections run at once,
    at most 16 of them for one client address, so that made-up tokens cannot block other clients; a request beyond
    the limit gets CWM-5005 and may try again.
    """

    url: str
    client: tuple[str, str]
    fetch: Fetch
    expected: Expected
    clock: Clock
    cache_seconds: float
    _good: _Cache = field(default_factory=OrderedDict)
    _bad: _Cache = field(default_factory=OrderedDict)
    _requests: dict[bytes, asyncio.Task[_Claims]] = field(default_factory=dict)
    _requests_by_source: Counter[str | None] = field(default_factory=Counter)

    async def checked(self, token: str) -> AccessToken:
        """Raises UnauthenticatedError, CWM-5005."""
        claims = await self._claims(token)
        if not _is_active(claims):
            raise UnauthenticatedError("The access token is unknown, revoked or expired.", why="inactive")
        return self.expected.token(claims, self.clock.now(), issuer_required=False)

    async def aclose(self) -> None:
        await cancel_and_wait(*self._requests.values())

    async def _claims(self, token: str) -> _Claims:
        name = sha256(token.encode()).digest()
        entry = self._good.get(name) or self._bad.get(name)
        if entry is not None and self.clock.monotonic() - entry[0] < self.cache_seconds:
            return entry[1]
        request = self._requests.get(name)
        if request is None:
            source = ORIGIN.get().source
            if len(self._requests) >= _MOST_AT_ONCE or self._requests_by_source[source] >= _MOST_OF_ONE:
                raise AuthorityUnavailableError(
                    "Too many access tokens are being introspected at once; try again."
                )
            self._requests_by_source[source] += 1
            request = self._requests[name] = asyncio.create_task(self._ask(name, token))
            request.add_done_callback(lambda _: self._count_down(source))
            # Read the exception here: all callers that wait may be cancelled before the task fails.
            request.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({request})
        return request.result()

    async def _ask(self, name: bytes, token: str) -> _Claims:
        form = {"token": token, "token_type_hint": "access_token"}
        try:
            claims = await self.fetch.post(self.url, form, self.client)
        finally:
            del self._requests[name]
        cache, other = (self._good, self._bad) if _is_active(claims) else (self._bad, self._good)
        other.pop(name, None)
        cache[name] = self.clock.monotonic(), claims
        cache.move_to_end(name)
        while len(cache) > _MOST_REMEMBERED:
            cache.popitem(last=False)
        return claims

    def _count_down(self, source: str | None) -> None:
        self._requests_by_source[source] -= 1
        if not self._requests_by_source[source]:
            del self._requests_by_source[source]


def _is_active(claims: _Claims) -> bool:
    return claims.get("active") is True
