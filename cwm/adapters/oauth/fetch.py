"""HTTP requests to an authorization server, which may be down, slow or malicious."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import httpx2

from cwm.adapters import certificates
from cwm.adapters.http.sockets import on_asyncio
from cwm.adapters.http.trust import trusted
from cwm.domain.errors import AuthorityUnavailableError

_SECONDS: Final = 3.0
_MOST_BYTES: Final = 256 * 1024


class Fetch:
    """Fetches JSON objects from URLs in the settings, or of a configured issuer.

    Follows no redirects. A whole request takes at most ``seconds``, a response has at most 256 KiB.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        transport = on_asyncio(httpx2.AsyncHTTPTransport(verify=trusted(), trust_env=False))
        self._http = httpx2.AsyncClient(
            timeout=seconds, transport=transport, trust_env=False, follow_redirects=False
        )

    async def get(self, url: str) -> dict[str, Any]:
        """The JSON object at ``url``. Raises CWM-5005 if there is none within the limits."""
        return await self._ask("GET", url)

    async def post(
        self,
        url: str,
        form: Mapping[str, str],
        auth: tuple[str, str] | None = None,
        also: frozenset[int] = frozenset(),
    ) -> dict[str, Any]:
        """The JSON object that answers, with status 200 or one of ``also``. Raises CWM-5005."""
        return await self._ask("POST", url, also, data=dict(form), auth=auth)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _ask(
        self, method: str, url: str, also: frozenset[int] = frozenset(), **request: Any
    ) -> dict[str, Any]:
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        try:
            # Needed beside the client's own timeout, which starts again with every byte.
            async with (
                asyncio.timeout(self._seconds),
                self._http.stream(method, url, headers=headers, **request) as answer,
            ):
                if answer.status_code not in {200, *also}:
                    raise _unavailable(url, f"answers {answer.status_code}")
                document = json.loads(await _body(answer, url))
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            raise _unavailable(url, certificates.fault(error) or "does not answer") from error
        except (ValueError, RecursionError) as error:
            raise _unavailable(url, "answers with something that is not JSON") from error
        if not isinstance(document, dict):
            raise _unavailable(url, "does not answer with a JSON object")
        return document


async def _body(answer: httpx2.Response, url: str) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _unavailable(url, f"answers with more than {_MOST_BYTES} bytes")
    return bytes(body)


def _unavailable(url: str, problem: str) -> AuthorityUnavailableError:
    """An error that names the server, so that the caller is not blamed and the operator knows where to look."""
    authority = url.partition("://")[2].partition("/")[0]
    host = authority.partition("?")[0] if authority.isprintable() else "an invalid address"
    return AuthorityUnavailableError(f"The authorization server at {host} {problem}; try again.")
