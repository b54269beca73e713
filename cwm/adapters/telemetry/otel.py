"""Traces by OpenTelemetry, sent over OTLP/HTTP from their own thread.

The provider is private, not the process's global one: libraries that trace through the global provider would
record exceptions with their text, and a second span for each of ours.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cwm import __version__
from cwm.domain.errors import CwmError
from cwm.ports.tracing import NO_SPAN, NOTHING, Attributes, Carrier, Span, SpanKind
from cwm.settings import Tracing

_QUEUED_SPANS: Final = 4096
_BATCH_SPANS: Final = 512
_DELAY_MS: Final = 1000
_EXPORT_SECONDS: Final = 5.0
_FLUSH_SECONDS: Final = 3.0
_LONGEST_VALUE: Final = 256
_LONGEST_PARENT: Final = 128
_LONGEST_STATE: Final = 512

_W3C: Final = TraceContextTextMapPropagator()
_KINDS: Final = {SpanKind.INTERNAL: trace.SpanKind.INTERNAL, SpanKind.CLIENT: trace.SpanKind.CLIENT}

_log = structlog.get_logger("cwm.tracing")


class OtelTracer:
    """The port :class:`cwm.ports.tracing.Tracer`."""

    on: bool = True

    def __init__(self, settings: Tracing) -> None:
        assert settings.otlp_endpoint is not None
        self._exporter = _ReportingExporter(
            OTLPSpanExporter(
                endpoint=settings.traces_url(),
                headers=settings.headers(),
                timeout=_EXPORT_SECONDS,
                compression=Compression.Gzip,
            ),
            urlsplit(settings.otlp_endpoint).hostname or "",
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.trace_sample_ratio)),
            resource=Resource.create(
                {
                    "service.name": settings.service_name,
                    "service.version": __version__,
                    "host.name": socket.gethostname(),
                }
            ),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attribute_length=_LONGEST_VALUE),
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=_QUEUED_SPANS,
                schedule_delay_millis=_DELAY_MS,
                max_export_batch_size=_BATCH_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer("cwm", __version__)

    @contextmanager
    def span(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes = NOTHING
    ) -> Iterator[Span]:
        with _open(self._tracer.start_span(name, kind=_KINDS[kind], attributes=attributes)) as span:
            yield span

    @contextmanager
    def call(self, name: str, attributes: Attributes = NOTHING) -> Iterator[Span]:
        if not trace.get_current_span().get_span_context().is_valid:
            yield NO_SPAN
            return
        otel_span = self._tracer.start_span(name, kind=trace.SpanKind.CLIENT, attributes=attributes)
        with _ending(otel_span) as span:
            yield span

    @contextmanager
    def request(
        self, name: str, came_with: Carrier, attributes: Attributes = NOTHING, started_ns: int | None = None
    ) -> Iterator[Span]:
        around = trace.get_current_span().get_span_context()
        parent = _extracted(came_with)
        otel_span = self._tracer.start_span(
            name,
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
            links=[trace.Link(around)] if parent is not None and around.is_valid else [],
            start_time=started_ns,
        )
        with _open(otel_span) as span:
            yield span

    @contextmanager
    def received(self, came_with: Carrier) -> Iterator[None]:
        parent = _extracted(came_with)
        if parent is None:
            yield
            return
        token = otel_context.attach(parent)
        try:
            yield
        finally:
            otel_context.detach(token)

    def current(self) -> Span:
        return _OtelSpan(trace.get_current_span())

    def carrier(self) -> Carrier:
        return _carrier(None)

    async def aclose(self) -> None:
        """Export the last spans in a daemon thread, so that a slow collector does not delay the end of the process."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=flush, name="cwm-last-traces", daemon=True).start()
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            _log.warning("traces_not_exported_at_the_end", seconds=_FLUSH_SECONDS)
            self._exporter.shutdown()


class _OtelSpan:
    """The port :class:`cwm.ports.tracing.Span`."""

    __slots__ = ("_failed", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._failed = False

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def failed(self, error_type: str) -> None:
        if not self._failed:
            self._failed = True
            self._span.set_attribute("error.type", error_type)
            # Without a description: an error message may quote a prompt.
            self._span.set_status(trace.StatusCode.ERROR)

    @property
    def carrier(self) -> Carrier:
        return _carrier(trace.set_span_in_context(self._span))


class _ReportingExporter(SpanExporter):
    """Logs once when exports begin to fail, and once when they succeed again."""

    def __init__(self, exporter: SpanExporter, host: str) -> None:
        self._exporter = exporter
        self._host = host
        self._lost_spans = 0
        self._closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost_spans:
                _log.warning("traces_not_exported", host=self._host)
            self._lost_spans += len(spans)
        elif self._lost_spans:
            _log.info("traces_exported_again", host=self._host, spans_lost=self._lost_spans)
            self._lost_spans = 0
        return result

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


@contextmanager
def _open(otel_span: trace.Span) -> Iterator[Span]:
    """Make ``otel_span`` the current span, and end it after the block."""
    token = otel_context.attach(trace.set_span_in_context(otel_span))
    try:
        with _ending(otel_span) as span:
            yield span
    finally:
        otel_context.detach(token)


@contextmanager
def _ending(otel_span: trace.Span) -> Iterator[Span]:
    span = _OtelSpan(otel_span)
    try:
        yield span
    except GeneratorExit:
        # The reader of a stream stopped reading: not an error.
        raise
    except BaseException as error:
        span.failed(_error_type(error))
        raise
    finally:
        otel_span.end()


def _error_type(error: BaseException) -> str:
    if isinstance(error, CwmError):
        return error.code
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__qualname__


def _carrier(context: otel_context.Context | None) -> Carrier:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context=context)
    return carrier


def _extracted(came_with: Carrier) -> otel_context.Context | None:
    """The trace context in a request's headers; None if they have no valid one."""
    parent, state = came_with.get("traceparent", ""), came_with.get("tracestate", "")
    if not parent or len(parent) > _LONGEST_PARENT:
        return None
    headers = {"traceparent": parent}
    if state and len(state) <= _LONGEST_STATE:
        headers["tracestate"] = state
    context = _W3C.extract(headers, context=otel_context.get_current())
    is_theirs = trace.get_current_span(context) is not trace.get_current_span()
    return context if is_theirs and trace.get_current_span(context).get_span_context().is_valid else None
