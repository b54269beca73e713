"""Records how the last request ended, also where an error says neither a status nor a cause."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2

from cwm.adapters import certificates
from cwm.cli.gateway.retries import seconds_of


@dataclass(slots=True)
class LastAnswer:
    """``status`` is None when no response came. ``tls_fault`` describes the TLS failure, if that was the cause.

    ``retry_after``: the seconds after which the response asks to try again.
    """

    status: int | None = None
    tls_fault: str | None = None
    retry_after: float | None = None


class NotedTransport(httpx2.AsyncHTTPTransport):
    """Ignores the environment except for SSL_CERT_FILE, which serves gateways with a private certificate."""

    def __init__(self, last: LastAnswer | None = None) -> None:
        self._last = last or LastAnswer()
        try:
            super().__init__(trust_env=True)
        except OSError as unusable:
            why = certificates.fault(unusable) or f"cannot be asked over TLS: {unusable.strerror}"
            self._last.tls_fault = why
            raise

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await super().handle_async_request(request)
        self._last.status = self._last.tls_fault = self._last.retry_after = None
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as failed:
            self._last.tls_fault = certificates.fault(failed)
            raise
        self._last.status = response.status_code
        self._last.retry_after = seconds_of(response.headers.get("retry-after"))
        return response
