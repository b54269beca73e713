"""Chooses the tracer: OpenTelemetry, or none."""

from __future__ import annotations

from cwm.ports.tracing import UNTRACED, Tracer
from cwm.settings import Tracing


def open_tracer(settings: Tracing) -> Tracer:
    """A tracer that exports to ``otlp_endpoint``; without an endpoint, one that does nothing."""
    if settings.otlp_endpoint is None:
        return UNTRACED
    # Imported here, because the SDK costs time and memory that a gateway without traces saves.
    from cwm.adapters.telemetry.otel import OtelTracer

    return OtelTracer(settings)
