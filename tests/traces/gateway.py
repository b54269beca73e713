"""The whole gateway on a real loopback socket, exporting to a sink, and clients that are in a trace."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI
from opentelemetry import context as otel_context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from cwm.app import create_app
from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Database, Engine, Isolation, Settings, Shared, Tracing
from tests.traces.sink import Sink
from tests.transport.mcp.gateway import nobody_listens, serving


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody with a span of their own."""

    trace: str
    span: str
    sampled: bool = True

    @property
    def parent(self) -> str:
        return f"00-{self.trace}-{self.span}-{int(self.sampled):02x}"

    @contextmanager
    def calling(self) -> Iterator[None]:
        """What the protocol's SDK sends meanwhile names this span in ``_meta``."""
        flags = TraceFlags(TraceFlags.SAMPLED if self.sampled else TraceFlags.DEFAULT)
        span = SpanContext(int(self.trace, 16), int(self.span, 16), is_remote=False, trace_flags=flags)
        token = otel_context.attach(set_span_in_context(NonRecordingSpan(span)))
        try:
            yield
        finally:
            otel_context.detach(token)


def caller(*, sampled: bool = True) -> Caller:
    return Caller(secrets.token_hex(16), secrets.token_hex(8), sampled)


@asynccontextmanager
async def traced_gateway(
    folder: Path,
    collector: Sink | None,
    *,
    engine: Engine | None = None,
    upstreams: Sequence[UpstreamSpec] = (),
    shared: Shared | None = None,
    database: Database | None = None,
    **tracing: Any,
) -> AsyncIterator[str]:
    """Its URL. When this ends everything is exported. Without a collector nothing is traced."""
    if collector is not None:
        tracing["otlp_endpoint"] = collector.url
    with nobody_listens() as away:
        settings = Settings(
            database=database or Database(db_path=folder / "cwm.db"),
            engine=engine or Engine(vllm_url=away, lmcache_url=away, coordinator_url=away),
            isolation=Isolation(secret="a test's secret", tenant="acme"),
            shared=shared or Shared(),
            upstreams=tuple(upstreams),
            tracing=Tracing(**tracing),
        )
        app: FastAPI = create_app(settings)
        async with serving(app, app.state.end_streams) as url:
            yield url


def http(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False)


async def arrived(collector: Sink, enough: Callable[[], bool]) -> None:
    await asyncio.to_thread(collector.wait, enough)
