"""Exchanges a caller's access token for an access token of the upstream (RFC 8693)."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from cwm.adapters import certificates
from cwm.adapters.http.bounded import read_bounded
from cwm.adapters.upstream.http import connection_pool
from cwm.background import cancel_and_wait
from cwm.domain.upstream import TokenExchange
from cwm.ports.upstream import UpstreamAwayError, UpstreamDeniedError

_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a type, no token
_TIMEOUT_SECONDS: Final = 10.0
# A token is requested again 30 s before it expires; one without ``expires_in`` is used for 60 s.
_MARGIN_SECONDS: Final = 30.0
_DEFAULT_SECONDS: Final = 60.0
_MOST_SECONDS: Final = 86_400.0
_MOST_BYTES: Final = 2**20
_MOST_TOKENS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Token:
    authorization: str
    until: float


class TokenExchanger:
    """Calls the token endpoint and caches tokens until they expire, in memory only."""

    def __init__(self, *, link_local: bool = False) -> None:
        pool = connection_pool(encrypted=True, link_local=link_local)
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False, transport=pool)
        self._tokens: dict[str, _Token] = {}
        self._requests: dict[str, asyncio.Task[_Token]] = {}

    async def exchange(self, at: TokenExchange, authorization: str) -> str:
        """The ``Authorization`` value for the upstream. Raises UpstreamAwayError, whose message contains no token."""
        scheme, _, subject_token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not subject_token:
            raise UpstreamDeniedError("it needs the caller's access token, and the caller sent none")
        key = _key(at, subject_token)
        token = self._tokens.get(key)
        if token is None or token.until <= time.monotonic():
            # Concurrent callers share one request, which continues if the first caller is cancelled.
            request = self._requests.get(key) or self._begin(key, at, subject_token)
            token = await asyncio.shield(request)
        return token.authorization

    async def aclose(self) -> None:
        await cancel_and_wait(*self._requests.values())
        await self._client.aclose()

    def _begin(self, key: str, at: TokenExchange, subject_token: str) -> asyncio.Task[_Token]:
        request = asyncio.create_task(self._ask(at, subject_token))
        self._requests[key] = request

        def store(task: asyncio.Task[_Token]) -> None:
            del self._requests[key]
            if task.cancelled() or task.exception() is not None:
                return
            if len(self._tokens) >= _MOST_TOKENS:
                self._tokens.pop(next(iter(self._tokens)))
            self._tokens[key] = task.result()

        request.add_done_callback(store)
        return request

    async def _ask(self, at: TokenExchange, subject_token: str) -> _Token:
        form = {
            "grant_type": _GRANT,
            "subject_token": subject_token,
            "subject_token_type": _ACCESS_TOKEN,
            "requested_token_type": _ACCESS_TOKEN,
        }
        form |= {"audience": at.audience} if at.audience else {}
        form |= {"scope": at.scope} if at.scope else {}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                self._client.stream(
                    "POST", at.token_url, data=form, auth=(at.client_id, at.client_secret)
                ) as answer,
            ):
                await read_bounded(answer, _MOST_BYTES)
            document = answer.json() if answer.is_success else {}
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            problem = certificates.fault(error) or f"failed ({type(error).__name__})"
            raise UpstreamAwayError(f"its token endpoint {problem}") from None
        token = document.get("access_token") if isinstance(document, dict) else None
        if not isinstance(token, str):
            message = f"its token endpoint refused the exchange (HTTP {answer.status_code})"
            raise UpstreamAwayError(message) if answer.is_server_error else UpstreamDeniedError(message)
        seconds = _lifetime(document.get("expires_in"))
        return _Token(f"Bearer {token}", time.monotonic() + seconds)


def _lifetime(seconds: Any) -> float:
    """How long a token is used, whatever its endpoint says of that: at most a day."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < math.inf:
        return _DEFAULT_SECONDS
    return min(float(seconds), _MOST_SECONDS) - _MARGIN_SECONDS


def _key(at: TokenExchange, subject_token: str) -> str:
    material = "\0".join((at.token_url, at.client_id, at.audience or "", at.scope or "", subject_token))
    return hashlib.sha256(material.encode()).hexdigest()
