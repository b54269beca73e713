"""Maps failures of the connection to vLLM to CWM's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from cwm.adapters import certificates
from cwm.domain.errors import EngineConnectionError, EngineResponseError, EngineTimeoutError


@contextmanager
def coded_errors(url: str, timeout_seconds: float, origin: str) -> Iterator[None]:
    """Map the HTTP client's exceptions, most specific first, with the original as the cause. ``origin``: what sets the URL."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as cause:
        raise EngineConnectionError(_unreachable(url, cause, origin), url=url) from cause
    except httpx2.TimeoutException as cause:
        raise EngineTimeoutError(
            f"vLLM at {url} did not answer within {timeout_seconds:g} s.",
            url=url,
            timeout_seconds=timeout_seconds,
        ) from cause
    except httpx2.NetworkError as cause:
        raise EngineConnectionError(
            f"The connection to vLLM at {url} broke before the answer was complete.", url=url
        ) from cause
    except httpx2.RemoteProtocolError as cause:
        raise _broken_answer(url, cause) from cause
    except (httpx2.HTTPError, httpx2.InvalidURL) as cause:
        raise EngineResponseError(
            f"vLLM at {url} did not speak HTTP as expected: {cause}", url=url
        ) from cause


def _unreachable(url: str, cause: httpx2.TransportError, origin: str) -> str:
    if (fault := certificates.fault(cause)) is not None:
        return f"vLLM at {url} {fault}. Check {origin}."
    return f"vLLM cannot be reached at {url}. Is it running, and is {origin} right?"


def _broken_answer(
    url: str, cause: httpx2.RemoteProtocolError
) -> EngineConnectionError | EngineResponseError:
    """A connection error if the peer closed the connection, a response error if it sent invalid HTTP."""
    text = str(cause).lower()
    if "disconnected" in text or "closed connection" in text:
        return EngineConnectionError(
            f"vLLM at {url} closed the connection before the answer was complete; it may be restarting.",
            url=url,
        )
    return EngineResponseError(f"vLLM at {url} did not speak HTTP as expected: {cause}", url=url)


class Freshness:
    """The HTTP client's trace hook for one request: records whether the request opened its own connection."""

    __slots__ = ("opened",)

    def __init__(self) -> None:
        self.opened = False

    async def __call__(self, event: str, _info: object) -> None:
        if event == "connection.connect_tcp.started":
            self.opened = True


def was_stale(error: httpx2.TransportError, freshness: Freshness) -> bool:
    """Whether the request failed on a pooled connection that was dead before the first byte of a response.

    Only then is it certain that vLLM has not begun to answer, so the request may be sent again.
    """
    broken = isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError)
    return broken and not freshness.opened
