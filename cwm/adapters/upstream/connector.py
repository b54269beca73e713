"""The port ``UpstreamConnector``: connects over stdio or streamable HTTP, as configured for the upstream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import httpx2

from cwm.adapters.upstream.exchange import TokenExchanger
from cwm.adapters.upstream.http import SessionHttp, StraightClient, connection_pool
from cwm.adapters.upstream.session import SdkSession
from cwm.adapters.upstream.stdio import program
from cwm.adapters.upstream.streamable import exchanging
from cwm.domain.upstream import OfferKind, UpstreamSpec
from cwm.ports.tracing import UNTRACED, Tracer
from cwm.ports.upstream import Heard

_GOODBYE_SECONDS: Final = 2.0
_GOODBYES_AT_ONCE: Final = 32


class SdkConnector:
    """Opens sessions; sessions with the same URL share connections. Link-local addresses need ``link_local``."""

    def __init__(self, tracer: Tracer = UNTRACED, *, link_local: bool = False) -> None:
        self._tracer = tracer
        self._link_local = link_local
        self._pools: dict[str, httpx2.AsyncHTTPTransport] = {}
        self._goodbyes: dict[str, asyncio.Semaphore] = {}
        self._exchanger = TokenExchanger(link_local=link_local)
        # Includes sessions that no caller refers to any more, until they have ended.
        self._sessions: set[SdkSession] = set()

    async def open(
        self,
        spec: UpstreamSpec,
        *,
        authorization: str | None = None,
        resume: str | None = None,
        heard: Heard | None = None,
    ) -> SdkSession:
        if spec.command:
            session = SdkSession(program(spec), spec, heard, self._sessions.discard)
        else:
            session = self._over_http(spec, resume, heard)
            if authorization is not None:
                await session.authorize(authorization)
        self._sessions.add(session)
        await session.start(resume)
        return session

    async def aclose(self) -> None:
        """Close the remaining sessions and every connection."""
        await asyncio.gather(*(each.close(end=False) for each in self._sessions))
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()
        await self._exchanger.aclose()

    def _over_http(self, spec: UpstreamSpec, resume: str | None, listener: Heard | None) -> SdkSession:
        pool = self._pools.get(spec.url)
        if pool is None:
            encrypted = spec.url.startswith("https:")
            pool = connection_pool(encrypted=encrypted, link_local=self._link_local)
            self._pools[spec.url] = pool

        def report_changes() -> None:
            if listener is not None:
                for part in OfferKind:
                    listener(part)

        session_id = None if resume is None else json.loads(resume)["id"]
        http = SessionHttp(pool, session_id, report_changes, self._tracer.carrier, spec.bounds.message_bytes)
        return SdkSession(
            _streams(spec, http),
            spec,
            listener,
            self._sessions.discard,
            http=http,
            exchanger=self._exchanger,
            goodbye=partial(self._say_goodbye, spec, http),
        )

    async def _say_goodbye(self, spec: UpstreamSpec, http: SessionHttp) -> None:
        if http.session_id is None:
            return
        headers = {} if http.version is None else {"mcp-protocol-version": http.version}
        # Many sessions may end at once: a semaphore limits the requests, and the timeout starts when one is free.
        async with self._goodbyes.setdefault(spec.url, asyncio.Semaphore(_GOODBYES_AT_ONCE)):
            with contextlib.suppress(httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS), _client(spec, http) as client:
                    await client.delete(spec.url, headers=headers)


def _client(spec: UpstreamSpec, http: SessionHttp) -> httpx2.AsyncClient:
    return StraightClient(
        transport=http,
        headers=dict(spec.headers),
        # No read timeout: each request has its own limit.
        timeout=httpx2.Timeout(spec.connect_seconds, read=None),
    )


@asynccontextmanager
async def _streams(spec: UpstreamSpec, http: SessionHttp) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        _client(spec, http) as client,
        exchanging(spec.url, client, spec.bounds.message_bytes) as streams,
    ):
        yield streams
